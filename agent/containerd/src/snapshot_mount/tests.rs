#![allow(clippy::unwrap_used)]

use super::*;

fn mount(fs_type: &str, source: &str, options: &[&str]) -> SnapshotMount {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    SnapshotMount { fs_type: fs_type.to_owned(), source: source.to_owned(), options }
}

/// The mounts are those that containerd's snapshotters return.
#[test]
fn each_snapshotter_is_understood() {
    let layers = |paths: &[&str]| Root::Layers(paths.iter().map(PathBuf::from).collect());
    let device = |fs_type: &str, source: &str, flags, data: &str| Root::FileSystem {
        fs_type: fs_type.to_owned(),
        source: source.to_owned(),
        flags,
        data: CString::new(data).unwrap(),
    };
    let empty = MountFlags::empty();
    for (snapshotter, answer, expected) in [
        ("native", mount("bind", "/s/1", &["rbind", "rw"]), layers(&["/s/1"])),
        (
            "overlayfs",
            mount("overlay", "overlay", &["index=off", "workdir=/w", "upperdir=/u", "lowerdir=/2:/1"]),
            layers(&["/u", "/2", "/1"]),
        ),
        (
            "btrfs",
            mount("btrfs", "/dev/sda1", &["subvolid=257", "rw"]),
            device("btrfs", "/dev/sda1", empty, "subvolid=257"),
        ),
        (
            "btrfs view",
            mount("btrfs", "/dev/sda1", &["subvolid=258", "ro"]),
            device("btrfs", "/dev/sda1", MountFlags::RDONLY, "subvolid=258"),
        ),
        (
            "devmapper",
            mount("xfs", "/dev/mapper/pool-snap-1", &["nouuid", "discard", "noatime"]),
            device("xfs", "/dev/mapper/pool-snap-1", MountFlags::NOATIME, "nouuid,discard"),
        ),
        ("zfs", mount("zfs", "tank/ctd/1", &["rw"]), device("zfs", "tank/ctd/1", empty, "")),
    ] {
        assert_eq!(Root::from_mounts(&[answer]).unwrap(), expected, "{snapshotter}");
    }
}

#[test]
fn a_snapshot_that_cannot_be_mounted_says_what_to_set() {
    let layer = mount("erofs", "/l", &[]);
    for (snapshotter, answer, why) in [
        ("blockfile", vec![mount("ext4", "/s/1", &["loop", "rw"])], "uses a loop device"),
        ("erofs", vec![layer.clone(), layer], "uses 2 mounts instead of one"),
        ("templates", vec![mount("format/overlay", "o", &["lowerdir={{ mount 0 }}"])], "refer to other mounts"),
        ("none", Vec::new(), "uses 0 mounts"),
    ] {
        let error = Root::from_mounts(&answer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{snapshotter}");
        let message = error.to_string();
        assert!(message.contains(why) && message.contains("set snapshotter in"), "{snapshotter}: {message}");
    }
}

#[test]
fn many_layers_fit_by_relative_paths() {
    let base = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots";
    let layers: Vec<PathBuf> = (1..=120).map(|number| PathBuf::from(format!("{base}/{number}/fs"))).collect();
    let (directory, options) = overlay_options(&layers).unwrap();
    assert_eq!(directory, Path::new(base));
    assert!(options.to_str().unwrap().starts_with("lowerdir=1/fs:2/fs:3/fs"));
    let apart = [PathBuf::from("/a/1/fs"), PathBuf::from("/b/2/fs")];
    assert_eq!(overlay_options(&apart).unwrap(), (PathBuf::from("/"), c"lowerdir=a/1/fs:b/2/fs".to_owned()));
    assert!(overlay_options(&vec![PathBuf::from(format!("/{}", "x".repeat(100))); 50]).is_err());
}

#[test]
fn layers_that_are_only_read_move_to_their_mapped_copy() {
    let overlay = |layers: &str| {
        let options = ["index=off", "workdir=/c/s/9/work", "upperdir=/c/s/9/fs", layers];
        mount("overlay", "overlay", &options)
    };
    let two = overlay("lowerdir=/c/s/2/fs:/c/s/1/fs");
    let directory = two.layers_directory().unwrap();
    assert_eq!((directory, two.upper()), (Path::new("/c/s"), Some(Path::new("/c/s/9/fs"))));
    assert_eq!(two.moved(directory, Path::new("/m")), overlay("lowerdir=/m/2/fs:/m/1/fs"));
    let overlay_mount = mount("bind", "/c/s/1/fs", &["ro", "rbind"]);
    assert_eq!(
        overlay_mount.moved(overlay_mount.layers_directory().unwrap(), Path::new("/m")),
        mount("bind", "/m/1/fs", &["ro", "rbind"])
    );
    for other in [mount("bind", "/c/native/1", &["rw"]), mount("btrfs", "/dev/sda1", &[]), mount("overlay", "o", &[])] {
        let error = other.layers_directory().unwrap_err().to_string();
        assert!(error.ends_with("set snapshotter to overlayfs"), "{error}");
    }
}

#[test]
fn a_label_is_an_option_in_quotes() {
    let rootfs = |options: &[&str]| containerd_client::types::Mount {
        r#type: "overlay".to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..containerd_client::types::Mount::default()
    };
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    let wanted = rootfs(&["lowerdir=/1", "context=\"system_u:object_r:container_file_t:s0:c1,c2\""]);
    assert_eq!(labelled(vec![rootfs(&["lowerdir=/1"])], label), [wanted]);
}
