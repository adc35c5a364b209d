#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use limpet_tests::need;
use rustix::fs::Mode;
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use super::*;

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("limpet-accounts-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("etc")).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn bind(root: &Path) -> Vec<SnapshotMount> {
    vec![SnapshotMount {
        fs_type: "bind".to_owned(),
        source: root.display().to_string(),
        options: vec!["rbind".to_owned(), "ro".to_owned()],
    }]
}

/// Only root may mount.
fn may_mount() -> bool {
    need::root("mounts").is_some()
}

#[test]
fn files_are_read_from_the_image() {
    if !may_mount() {
        return;
    }
    let image = Scratch::new("plain");
    fs::write(image.0.join("etc/passwd"), "root:x:0:0::/root:\n").unwrap();
    let accounts = read_accounts(&bind(&image.0)).unwrap();
    assert_eq!(accounts, Accounts { passwd: Some("root:x:0:0::/root:\n".to_owned()), group: None });
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounted.contains("limpet-accounts-plain"), "nothing is left mounted");
}

#[test]
fn layers_are_merged() {
    if !may_mount() {
        return;
    }
    let image = Scratch::new("layers");
    for (layer, file, text) in
        [("1", "passwd", "old"), ("1", "group", "kept"), ("2", "passwd", "new"), ("3", "hosts", "other")]
    {
        fs::create_dir_all(image.0.join(layer).join("etc")).unwrap();
        fs::write(image.0.join(layer).join("etc").join(file), text).unwrap();
    }
    let layer = |number: &str| image.0.join(number).display().to_string();
    let overlay = SnapshotMount {
        fs_type: "overlay".to_owned(),
        source: "overlay".to_owned(),
        options: vec![
            "index=off".to_owned(),
            format!("workdir={}", layer("work")),
            format!("upperdir={}", layer("3")),
            format!("lowerdir={}:{}", layer("2"), layer("1")),
        ],
    };
    let accounts = read_accounts(&[overlay]).unwrap();
    assert_eq!(accounts, Accounts { passwd: Some("new".to_owned()), group: Some("kept".to_owned()) });
}

/// devmapper's snapshot is a file system on a block device, which the container mounts right afterwards.
#[test]
fn files_are_read_from_a_device_that_is_free_again_afterwards() {
    let (Some(()), Some(mut format), Some(mut attach)) =
        (need::root("mounts"), need::program("mkfs.ext4"), need::program("losetup"))
    else {
        return;
    };
    let image = Scratch::new("device");
    fs::write(image.0.join("etc/passwd"), "root:x:0:0::/root:\n").unwrap();
    let disk = image.0.with_extension("img");
    fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
    assert!(format.args(["-q", "-d"]).args([&image.0, &disk]).status().unwrap().success());
    let attached = attach.args(["--find", "--show"]).arg(&disk).output().unwrap();
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let mount =
        SnapshotMount { fs_type: "ext4".to_owned(), source: device.clone(), options: vec!["discard".to_owned()] };
    let read = read_accounts(&[mount]);
    // While any mount of the device remains, a mount of the other kind fails with EBUSY.
    let again = MountFlags::RDONLY;
    let target = image.0.join("etc");
    let mounted = rustix::mount::mount(device.as_str(), &target, "ext4", again, c"")
        .and_then(|()| unmount(&target, UnmountFlags::empty()));
    let detached = std::process::Command::new("losetup").args(["--detach", &device]).status();
    fs::remove_file(&disk).unwrap();
    assert_eq!(read.unwrap().passwd.as_deref(), Some("root:x:0:0::/root:\n"));
    mounted.unwrap();
    assert!(detached.unwrap().success());
}

#[test]
fn symlinks_do_not_leave_the_image() {
    if !may_mount() {
        return;
    }
    let host = Scratch::new("host");
    fs::write(host.0.join("secret"), "of the host").unwrap();
    let outside = host.0.join("secret").display().to_string();
    let up = format!("../../../../../../../..{outside}");
    let link = |name: &str, target: &str| {
        let image = Scratch::new(name);
        symlink(target, image.0.join("etc/passwd")).unwrap();
        image
    };
    let absolute = link("absolute", &outside);
    assert_eq!(read_accounts(&bind(&absolute.0)).unwrap().passwd, None);
    let relative = link("relative", &up);
    assert_eq!(read_accounts(&bind(&relative.0)).unwrap().passwd, None);
    let shadow = link("shadow", "/etc/shadow");
    fs::write(shadow.0.join("etc/shadow"), "of the image").unwrap();
    assert_eq!(read_accounts(&bind(&shadow.0)).unwrap().passwd.as_deref(), Some("of the image"));
    let round = link("round", "passwd");
    assert!(read_accounts(&bind(&round.0)).is_err());

    let directory = Scratch::new("directory");
    fs::remove_dir(directory.0.join("etc")).unwrap();
    symlink(host.0.display().to_string(), directory.0.join("etc")).unwrap();
    fs::write(host.0.join("passwd"), "of the host").unwrap();
    assert_eq!(read_accounts(&bind(&directory.0)).unwrap(), Accounts::default());
}

#[test]
fn a_file_that_is_not_regular_or_too_large_is_refused() {
    if !may_mount() {
        return;
    }
    let image = Scratch::new("odd");
    fs::create_dir(image.0.join("etc/passwd")).unwrap();
    let error = read_accounts(&bind(&image.0)).unwrap_err();
    assert_eq!(error.to_string(), "/etc/passwd of the image: not a regular file");
    fs::remove_dir(image.0.join("etc/passwd")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, image.0.join("etc/passwd"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(read_accounts(&bind(&image.0)).is_err(), "a pipe neither hangs nor counts");
    fs::remove_file(image.0.join("etc/passwd")).unwrap();
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(rustix::fs::CWD, image.0.join("etc/passwd"), FileType::CharacterDevice, Mode::RUSR, null)
        .unwrap();
    let error = read_accounts(&bind(&image.0)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "devices are not even opened");
    fs::remove_file(image.0.join("etc/passwd")).unwrap();
    fs::write(image.0.join("etc/group"), "x".repeat((1 << 20) + 1)).unwrap();
    assert!(read_accounts(&bind(&image.0)).unwrap_err().to_string().contains("larger than 1 MiB"));
}

#[test]
fn the_cache_is_bounded_by_bytes() {
    let cache = AccountsCache::default();
    let accounts = |bytes: usize| Arc::new(Accounts { passwd: Some("x".repeat(bytes)), group: None });
    for number in 0..10 {
        cache.put(format!("chain-{number}").into(), accounts(60 << 10));
    }
    assert!(cache.get("chain-9").is_some() && cache.get("chain-6").is_some());
    assert!(cache.get("chain-5").is_none(), "five of 60 KiB are more than it keeps");
    cache.put("large".into(), accounts(1 << 20));
    assert!(cache.get("large").is_none());
    assert!(cache.get("chain-9").is_some(), "an entry that does not fit evicts nothing");
}
