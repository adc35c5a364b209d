#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use limpet_tests::need::need;

use super::*;

#[cfg(feature = "attribution")]
mod attributor;
#[cfg(feature = "attribution")]
mod load;

struct Place {
    _root: tempfile::TempDir,
    parent: PathBuf,
    directory: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().canonicalize().unwrap();
        let directory = parent.join("manifests");
        fs::create_dir(&directory).unwrap();
        Self { _root: root, parent, directory }
    }

    async fn watch(&self) -> DirectoryWatch {
        let mut watch = DirectoryWatch::new(&self.directory).unwrap();
        assert_eq!(watch.next().await.unwrap(), WatchEvent::Rescan(RescanReason::Start));
        watch
    }
}

/// The next event; the time limit only ends a test that would hang.
async fn next(watch: &mut DirectoryWatch) -> WatchEvent {
    tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("no event").unwrap()
}

fn hint(names: &[&str]) -> WatchEvent {
    WatchEvent::Hint(names.iter().map(OsString::from).collect())
}

#[tokio::test]
async fn a_write_is_told_at_its_close_and_a_rename_at_once() {
    let place = Place::new();
    let mut watch = place.watch().await;
    let mut open = fs::File::create(place.directory.join("slow.yaml")).unwrap();
    std::io::Write::write_all(&mut open, b"half").unwrap();
    fs::write(place.parent.join("new"), "x").unwrap();
    fs::rename(place.parent.join("new"), place.directory.join("new.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["new.yaml"]));
    drop(open);
    assert_eq!(next(&mut watch).await, hint(&["slow.yaml"]));
    fs::remove_file(place.directory.join("new.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["new.yaml"]));
}

#[tokio::test]
async fn links_are_told_when_they_appear() {
    let place = Place::new();
    fs::write(place.parent.join("there.yaml"), "x").unwrap();
    let mut watch = place.watch().await;
    symlink("../there.yaml", place.directory.join("soft.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["soft.yaml"]));
    fs::hard_link(place.parent.join("there.yaml"), place.directory.join("hard.yaml")).unwrap();
    assert_eq!(next(&mut watch).await, hint(&["hard.yaml"]));
}

#[tokio::test]
async fn a_followed_link_is_hinted_when_its_target_changes() {
    let place = Place::new();
    let elsewhere = place.parent.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a.yaml"), "x").unwrap();
    symlink("../elsewhere/a.yaml", place.directory.join("a.yaml")).unwrap();
    let mut watch = place.watch().await;
    assert!(watch.follow([OsStr::new("a.yaml")]));
    assert!(!watch.follow([OsStr::new("a.yaml")]));
    fs::write(elsewhere.join("other.yaml"), "x").unwrap();
    fs::write(elsewhere.join("a.yaml"), "y").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_projected_volume_swap_hints_every_file() {
    let place = Place::new();
    for version in ["..v1", "..v2"] {
        fs::create_dir(place.directory.join(version)).unwrap();
        fs::write(place.directory.join(version).join("a.yaml"), version).unwrap();
        fs::write(place.directory.join(version).join("b.yaml"), version).unwrap();
    }
    symlink("..v1", place.directory.join("..data")).unwrap();
    symlink("..data/a.yaml", place.directory.join("a.yaml")).unwrap();
    symlink("..data/b.yaml", place.directory.join("b.yaml")).unwrap();
    let mut watch = place.watch().await;
    watch.follow([OsStr::new("a.yaml"), OsStr::new("b.yaml")]);
    symlink("..v2", place.directory.join("..data_tmp")).unwrap();
    fs::rename(place.directory.join("..data_tmp"), place.directory.join("..data")).unwrap();
    let mut seen = BTreeSet::new();
    while !(seen.contains(OsStr::new("a.yaml")) && seen.contains(OsStr::new("b.yaml"))) {
        match next(&mut watch).await {
            WatchEvent::Hint(names) => seen.extend(names),
            WatchEvent::Rescan(reason) => panic!("{reason:?}"),
        }
    }
}

#[tokio::test]
async fn a_directory_that_goes_and_comes_is_watched_again() {
    let place = Place::new();
    let mut watch = place.watch().await;
    fs::remove_dir(&place.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Removed));
    fs::create_dir(&place.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Returned));
    fs::write(place.directory.join("a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
    fs::rename(&place.directory, place.parent.join("old")).unwrap();
    fs::create_dir(&place.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(place.parent.join("old/b.yaml"), "x").unwrap();
    fs::write(place.directory.join("c.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["c.yaml"]));
}

#[tokio::test]
async fn a_directory_that_was_another_one_for_a_moment_is_read_again() {
    let place = Place::new();
    let (other, aside) = (place.parent.join("other"), place.parent.join("aside"));
    fs::create_dir(&other).unwrap();
    let mut watch = place.watch().await;
    fs::rename(&place.directory, &aside).unwrap();
    fs::rename(&other, &place.directory).unwrap();
    // Whoever reads now reads what is in the other one.
    fs::rename(&place.directory, &other).unwrap();
    fs::rename(&aside, &place.directory).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(place.directory.join("a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_directory_whose_ancestors_are_missing_is_found_when_they_appear() {
    let place = Place::new();
    let deep = place.parent.join("one/two/three");
    let mut watch = DirectoryWatch::new(&deep).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Returned));
    fs::rename(place.parent.join("one"), place.parent.join("gone")).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Removed));
}

#[tokio::test]
async fn a_path_that_is_a_symlink_is_followed_where_it_points_now() {
    let place = Place::new();
    fs::create_dir(place.parent.join("blue")).unwrap();
    fs::create_dir(place.parent.join("green")).unwrap();
    let current = place.parent.join("current");
    symlink("blue", &current).unwrap();
    let mut watch = DirectoryWatch::new(&current).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    symlink("green", place.parent.join("next")).unwrap();
    fs::rename(place.parent.join("next"), &current).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
    fs::write(place.parent.join("green/a.yaml"), "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}

#[tokio::test]
async fn a_file_system_mounted_over_the_directory_is_noticed() {
    let place = Place::new();
    let mut watch = place.watch().await;
    let mounted = rustix::mount::mount("tmpfs", &place.directory, "tmpfs", MountFlags::empty(), None);
    let Some(()) = need(mounted.map_err(|error| format!("the right to mount: {error}"))) else { return };
    let event = next(&mut watch).await;
    fs::write(place.directory.join("a.yaml"), "x").unwrap();
    let inside = next(&mut watch).await;
    rustix::mount::unmount(&place.directory, UnmountFlags::DETACH).unwrap();
    assert_eq!(event, WatchEvent::Rescan(RescanReason::Replaced));
    assert_eq!(inside, hint(&["a.yaml"]));
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Replaced));
}

#[tokio::test]
async fn a_directory_whose_mode_changes_is_read_again() {
    let place = Place::new();
    let mut watch = place.watch().await;
    fs::set_permissions(&place.directory, fs::metadata(&place.directory).unwrap().permissions()).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributes));
}

#[tokio::test]
async fn an_overflow_asks_for_a_rescan() {
    let place = Place::new();
    let mut watch = place.watch().await;
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let file = place.directory.join("a.yaml");
    for _ in 0..limit {
        fs::write(&file, "x").unwrap();
        fs::remove_file(&file).unwrap();
    }
    // What was told before the queue was full comes first.
    while next(&mut watch).await != WatchEvent::Rescan(RescanReason::Overflow) {}
    fs::write(&file, "x").unwrap();
    assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
}
