#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;

use rustix::mount::{MountFlags, UnmountFlags};

use limpet_tests::need::need;
use limpet_tests::wait;

use super::*;

#[cfg(feature = "attribution")]
mod attributor;
#[cfg(feature = "attribution")]
mod load;

struct TestDirectory {
    _root: tempfile::TempDir,
    parent: PathBuf,
    directory: PathBuf,
}

impl TestDirectory {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().canonicalize().unwrap();
        let directory = parent.join("manifests");
        fs::create_dir(&directory).unwrap();
        Self { _root: root, parent, directory }
    }

    async fn watch(&self) -> DirectoryWatch {
        watch_without_mounts(&self.directory).await
    }
}

/// A watch of `directory` that has begun.
async fn watch_of(directory: &Path) -> DirectoryWatch {
    let mut watch = DirectoryWatch::new(directory).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    watch
}

/// The same, but it reads only the kernel's queue. Tests in this process mount at any time, and a directory that is
/// replaced just then is rescanned once for the mount and again for the event.
async fn watch_without_mounts(directory: &Path) -> DirectoryWatch {
    DirectoryWatch { mounts: None, ..watch_of(directory).await }
}

/// The next event; the time limit only ends a test that would hang.
async fn next(watch: &mut DirectoryWatch) -> WatchEvent {
    tokio::time::timeout(wait::soon(), watch.next()).await.expect("no event").unwrap()
}

fn hint(names: &[&str]) -> WatchEvent {
    WatchEvent::Hint(names.iter().map(OsString::from).collect())
}

#[tokio::test]
async fn a_write_is_reported_at_close_and_a_rename_at_once() {
    let test = TestDirectory::new();
    let mut watch = test.watch().await;
    let mut open = fs::File::create(test.directory.join("slow.yaml")).unwrap();
    std::io::Write::write_all(&mut open, b"half").unwrap();
    fs::write(test.parent.join("new"), "x").unwrap();
    fs::rename(test.parent.join("new"), test.directory.join("new.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["new.yaml"]));
    drop(open);
    assert_eq!(next(&mut watch).await, hint(&["slow.yaml"]));
    fs::remove_file(test.directory.join("new.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["new.yaml"]));
}

#[tokio::test]
async fn links_are_reported_when_created() {
    let test = TestDirectory::new();
    fs::write(test.parent.join("there.yaml"), "x").unwrap();
    let mut watch = test.watch().await;
    symlink("../there.yaml", test.directory.join("soft.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["soft.yaml"]));
    fs::hard_link(test.parent.join("there.yaml"), test.directory.join("hard.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["hard.yaml"]));
}

#[tokio::test]
async fn a_followed_link_is_hinted_when_its_target_changes() {
    let test = TestDirectory::new();
    let elsewhere = test.parent.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a.yaml"), "x").unwrap();
    symlink("../elsewhere/a.yaml", test.directory.join("a.yaml")).unwrap();
    let mut watch = test.watch().await;
    assert!(watch.follow([OsStr::new("a.yaml")]).await);
    assert!(!watch.follow([OsStr::new("a.yaml")]).await);
    fs::write(elsewhere.join("other.yaml"), "x").unwrap();
    fs::write(elsewhere.join("a.yaml"), "y").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_projected_volume_swap_hints_every_file() {
    let test = TestDirectory::new();
    for version in ["..v1", "..v2"] {
        fs::create_dir(test.directory.join(version)).unwrap();
        fs::write(test.directory.join(version).join("a.yaml"), version).unwrap();
        fs::write(test.directory.join(version).join("b.yaml"), version).unwrap();
    }
    symlink("..v1", test.directory.join("..data")).unwrap();
    symlink("..data/a.yaml", test.directory.join("a.yaml")).unwrap();
    symlink("..data/b.yaml", test.directory.join("b.yaml")).unwrap();
    let mut watch = test.watch().await;
    watch.follow([OsStr::new("a.yaml"), OsStr::new("b.yaml")]).await;
    symlink("..v2", test.directory.join("..data_tmp")).unwrap();
    fs::rename(test.directory.join("..data_tmp"), test.directory.join("..data")).unwrap();
    let mut seen = BTreeSet::new();
    while !(seen.contains(OsStr::new("a.yaml")) && seen.contains(OsStr::new("b.yaml"))) {
        match next(&mut watch).await {
            WatchEvent::Hint(names) => seen.extend(names),
            WatchEvent::Rescan(reason) => panic!("{reason:?}"),
        }
    }
}

#[tokio::test]
async fn a_directory_that_is_removed_and_created_again_is_watched_again() {
    let test = TestDirectory::new();
    let mut watch = test.watch().await;
    fs::remove_dir(&test.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Removed));
    fs::create_dir(&test.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Returned));
    fs::write(test.directory.join("a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
    fs::rename(&test.directory, test.parent.join("old")).unwrap();
    fs::create_dir(&test.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(test.parent.join("old/b.yaml"), "x").unwrap();
    fs::write(test.directory.join("c.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["c.yaml"]));
}

#[tokio::test]
async fn a_directory_that_was_replaced_temporarily_is_rescanned() {
    let test = TestDirectory::new();
    let (other, aside) = (test.parent.join("other"), test.parent.join("aside"));
    fs::create_dir(&other).unwrap();
    let mut watch = test.watch().await;
    fs::rename(&test.directory, &aside).unwrap();
    fs::rename(&other, &test.directory).unwrap();
    // A read now returns the files of the other directory.
    fs::rename(&test.directory, &other).unwrap();
    fs::rename(&aside, &test.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(test.directory.join("a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_directory_whose_ancestors_are_missing_is_found_when_they_appear() {
    let test = TestDirectory::new();
    let deep = test.parent.join("one/two/three");
    let mut watch = watch_without_mounts(&deep).await;
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Returned));
    fs::rename(test.parent.join("one"), test.parent.join("gone")).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Removed));
}

#[tokio::test]
async fn a_path_that_is_a_symlink_is_followed_where_it_points_now() {
    let test = TestDirectory::new();
    fs::create_dir(test.parent.join("blue")).unwrap();
    fs::create_dir(test.parent.join("green")).unwrap();
    let current = test.parent.join("current");
    symlink("blue", &current).unwrap();
    let mut watch = watch_without_mounts(&current).await;
    symlink("green", test.parent.join("next")).unwrap();
    fs::rename(test.parent.join("next"), &current).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(test.parent.join("green/a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_file_system_mounted_over_the_directory_is_noticed() {
    let test = TestDirectory::new();
    let mut watch = watch_of(&test.directory).await;
    let mounted = rustix::mount::mount("tmpfs", &test.directory, "tmpfs", MountFlags::empty(), None);
    let Some(()) = need(mounted.map_err(|error| format!("the right to mount: {error}"))) else { return };
    let event = next(&mut watch).await;
    fs::write(test.directory.join("a.yaml"), "x").unwrap();
    let inside = next(&mut watch).await;
    rustix::mount::unmount(&test.directory, UnmountFlags::DETACH).unwrap();
    assert_eq!(event, WatchEvent::Rescan(RescanReason::Replaced));
    assert_eq!(inside, hint(&["a.yaml"]));
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
}

/// Awaits a change of the mount table. Returns whether the path has to be resolved again.
async fn is_resolved_again(watch: &DirectoryWatch) -> bool {
    let changed = mounts_changed(watch.mounts.as_ref());
    tokio::time::timeout(wait::soon(), changed).await.expect("no change");
    !watch.leads_where_it_did()
}

#[tokio::test]
async fn a_path_is_resolved_again_only_if_a_mount_changes_where_it_leads_to() {
    let test = TestDirectory::new();
    let elsewhere = test.parent.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let watch = watch_of(&test.directory).await;
    let mounted = rustix::mount::mount("tmpfs", &elsewhere, "tmpfs", MountFlags::empty(), None);
    let Some(()) = need(mounted.map_err(|error| format!("the right to mount: {error}"))) else { return };
    let (after_mount, unmounted) =
        (is_resolved_again(&watch).await, rustix::mount::unmount(&elsewhere, UnmountFlags::DETACH));
    let after_unmount = is_resolved_again(&watch).await;
    // The path now leads to the same directory through another mount.
    rustix::mount::mount_bind_recursive(&test.parent, &test.parent).unwrap();
    let below_bind = is_resolved_again(&watch).await;
    rustix::mount::unmount(&test.parent, UnmountFlags::DETACH).unwrap();
    unmounted.unwrap();
    assert_eq!((after_mount, after_unmount, below_bind), (false, false, true));
}

#[tokio::test]
async fn a_path_with_a_symlink_is_resolved_again_at_each_mount() {
    let test = TestDirectory::new();
    let link = test.parent.join("link");
    symlink(&test.directory, &link).unwrap();
    let (straight, through_link) = (test.watch().await, DirectoryWatch::new(&link).await.unwrap());
    assert!(straight.leads_where_it_did() && !through_link.leads_where_it_did());
}

#[tokio::test]
async fn a_directory_whose_mode_changes_is_rescanned() {
    let test = TestDirectory::new();
    let mut watch = test.watch().await;
    fs::set_permissions(&test.directory, fs::metadata(&test.directory).unwrap().permissions()).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributes));
}

#[tokio::test]
async fn an_overflow_requests_a_rescan() {
    let test = TestDirectory::new();
    let mut watch = test.watch().await;
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let file = test.directory.join("a.yaml");
    for _ in 0..limit {
        fs::write(&file, "x").unwrap();
        fs::remove_file(&file).unwrap();
    }
    // Events queued before the overflow come first.
    while next(&mut watch).await != WatchEvent::Rescan(RescanReason::Overflow) {}
    fs::write(&file, "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}
