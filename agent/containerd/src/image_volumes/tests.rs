#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};

use limpet_tests::need;
use rustix::fs::{CWD, Mode};
use serde_json::json;

use super::*;

fn paths(volumes: serde_json::Value, mounts: &[&str]) -> Result<Vec<String>, String> {
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
        "config": {"Volumes": volumes}});
    let image = LocalImage {
        name: "i".into(),
        digest: "d".into(),
        chain_id: "c".into(),
        config: serde_json::from_value(config).unwrap(),
        size: 0,
    };
    let mounts: Vec<_> = mounts.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
    let container = serde_json::from_value(json!({"name": "c", "volumeMounts": mounts})).unwrap();
    Ok(declared(&image, &container)?.into_iter().map(|path| path.display().to_string()).collect())
}

#[test]
fn a_volume_of_the_container_replaces_the_images() {
    let volumes = json!({"/data": {}, "var/lib/x/": {}, "/data/sub": {}, "/": {}, "/a/../data": {}});
    assert_eq!(paths(json!(null), &[]).unwrap(), [""; 0]);
    assert_eq!(paths(volumes.clone(), &[]).unwrap(), ["/data", "/data/sub", "/var/lib/x"]);
    assert_eq!(paths(volumes, &["/data/", "/var/lib"]).unwrap(), ["/data/sub", "/var/lib/x"]);
    let many: serde_json::Map<_, _> = (0..200).map(|number| (format!("/v{number}"), json!({}))).collect();
    assert!(paths(many.into(), &[]).unwrap_err().contains("declares 200 volumes"));
}

#[test]
fn a_directory_gets_what_the_image_has_there() {
    if need::root("mounts").is_none() {
        return;
    }
    let (image, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = image.path().join("srv/data");
    fs::create_dir_all(data.join("sub")).unwrap();
    fs::create_dir(image.path().join("empty")).unwrap();
    fs::write(image.path().join("file"), "").unwrap();
    fs::write(data.join("sub/tool"), vec![7; 5 << 20]).unwrap();
    chown(data.join("sub/tool"), Some(33), Some(34)).unwrap();
    fs::set_permissions(data.join("sub/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    chown(&data, Some(1000), Some(1001)).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o1770)).unwrap();
    rustix::fs::setxattr(data.join("sub"), "user.note", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    symlink("/etc/shadow", data.join("link")).unwrap();
    rustix::fs::mkfifoat(CWD, data.join("pipe"), Mode::RWXU).unwrap();
    symlink("/srv/data", image.path().join("by-link")).unwrap();
    symlink("../../../../../../etc", image.path().join("out")).unwrap();
    let mounts = [SnapshotMount {
        fs_type: "bind".to_owned(),
        source: image.path().display().to_string(),
        options: vec!["rbind".to_owned(), "ro".to_owned()],
    }];
    let progress = Progress::new(to.path());
    let filled = |path: &str, name: &str| {
        let directory = to.path().join(name);
        fs::create_dir_all(&directory).unwrap();
        fill(&mounts, &[(Path::new(path), &directory)], &progress)
            .map(|()| directory)
            .map_err(|error| error.to_string())
    };
    let directory = filled("/by-link", "0").unwrap();
    let top = fs::metadata(&directory).unwrap();
    assert_eq!((top.uid(), top.gid(), top.mode() & 0o7777), (1000, 1001, 0o1770));
    let tool = fs::metadata(directory.join("sub/tool")).unwrap();
    assert_eq!((tool.uid(), tool.gid(), tool.mode() & 0o7777, tool.len()), (33, 34, 0o4755, 5 << 20));
    assert_eq!(tool.mtime_nsec(), fs::metadata(data.join("sub/tool")).unwrap().mtime_nsec());
    assert_eq!(fs::read_link(directory.join("link")).unwrap(), Path::new("/etc/shadow"));
    assert!(fs::symlink_metadata(directory.join("pipe")).unwrap().file_type().is_fifo());
    let mut note = Vec::with_capacity(16);
    rustix::fs::getxattr(directory.join("sub"), "user.note", rustix::buffer::spare_capacity(&mut note)).unwrap();
    assert_eq!(note, b"kept");
    // A path that the image does not have, or that would lead outside, stays an empty directory of root's.
    for path in ["/none/at/all", "/out", "/empty"] {
        let directory = filled(path, "1").unwrap();
        let there = (fs::metadata(&directory).unwrap().mode() & 0o7777, fs::read_dir(&directory).unwrap().count());
        assert_eq!(there, (0o755, 0), "{path}");
    }
    assert!(filled("/file", "2").unwrap_err().contains("the volume /file of the image: it is no directory"));
    assert!(filled("/srv/data", "0").is_err(), "it is filled once");
}
