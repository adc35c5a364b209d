//! The sequence of calls, with tools that write down how they are called.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use limpet_tests::need;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::volume::iscsi::disk::tests::volume;

/// A node with a kernel of files, and tools that write down their arguments.
struct Fixture {
    dir: TempDir,
    disks: IscsiDisks,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sys", "dev/mapper", "tools", "root"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("calls"), "").unwrap();
        let at = |name: &str| dir.path().join(name);
        let tools = vec![at("tools")];
        let in_use = VolumesInUse::default();
        let disks = IscsiDisks::on(&at("root"), Node { sys: at("sys"), dev: at("dev"), tools }, in_use);
        let fixture = Self { dir, disks };
        fixture.tool("iscsiadm", "");
        fixture
    }

    /// The same node with a restarted agent.
    fn next(self) -> Self {
        let disks = IscsiDisks::on(&self.at("root"), self.disks.node.clone(), VolumesInUse::default());
        Self { disks, dir: self.dir }
    }

    /// The volumes that a controller must not detach.
    fn in_use(&self) -> Vec<String> {
        self.disks.in_use.names().into_iter().collect()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A tool that runs `script`, with its call in `$call`. The script finds the machine's own tools.
    fn tool(&self, name: &str, script: &str) {
        let (path, calls) = (self.at("tools").join(name), self.at("calls"));
        let text = format!("#!/bin/sh\ncall=\"$*\"\necho \"{name} $call\" >> {}\n{script}\n", calls.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// From now on a login makes the session `number` appear, by moving it into the simulated sysfs.
    fn session_at_login(&self, number: u32, portal: &str, disks: &[(u32, &str)]) {
        let (sys, made) = (self.at("sys"), self.at(&format!("made-{number}")));
        sessions::tests::put(&made, number, "default", portal.parse().unwrap(), disks);
        for (_, name) in disks {
            fs::write(self.at("dev").join(name), [0; 4096]).unwrap();
        }
        // The links lead to where the session's directory will be.
        let script = format!(
            "case \"$call\" in *\"-p {portal} \"*--login) cp -a {made}/. {sys}/\n\
             ln -sfn ../../../devices/platform/host{host}/session{number} {sys}/class/iscsi_session/session{number}/device;; esac",
            made = made.display(),
            sys = sys.display(),
            host = number + 2,
        );
        self.tool("iscsiadm", &script);
    }

    /// The calls since the last check.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.at("calls")).unwrap();
        fs::write(self.at("calls"), "").unwrap();
        calls.lines().map(str::to_owned).collect()
    }

    fn device(&self, fields: Value) -> IscsiMount {
        let mut disk_volume = volume(fields);
        disk_volume.block = true;
        let pod = crate::volume::tests::record(json!({"containers": []}));
        IscsiMount::new(&pod, &self.at("root/pods/u"), "data", &disk_volume, Ok(Default::default()), false).unwrap()
    }

    /// The disk as a directory of that pod.
    fn mounted(&self, read_only: bool, uid: &str) -> IscsiMount {
        let pod = crate::volume::tests::record(json!({"containers": []}));
        let pod_dir = self.at("root/pods").join(uid);
        IscsiMount::new(&pod, &pod_dir, "data", &volume(json!({})), Ok(Default::default()), read_only).unwrap()
    }

    /// The tools for a blank disk, which is a tmpfs once it is mounted.
    fn file_system_tools(&self) {
        self.tool("blkid", "exit 2");
        self.tool("mkfs.ext4", "");
        // The last argument is the mount point.
        self.tool("mount", "for last; do :; done; /bin/mount -t tmpfs none \"$last\"");
        self.tool("umount", "/bin/umount \"$1\"");
    }

    async fn set_up(&self, mount: &IscsiMount, uid: &str) -> Result<(), String> {
        self.disks.set_up(mount, &PodUid::new(uid)).await.map_err(text)
    }

    async fn tear_down(&self, uid: &str) -> Result<(), String> {
        let pod_dir = self.at("root/pods").join(uid);
        self.disks.tear_down(&pod_dir, &PodUid::new(uid)).await.map_err(text)
    }
}

/// The words that distinguish a call from others.
fn brief(calls: &[String]) -> Vec<String> {
    calls.iter().map(|call| call.split_once(' ').unwrap_or_default().1.to_owned()).collect()
}

const PORTAL: &str = "192.0.2.1:3260";

#[tokio::test]
async fn a_disk_is_attached_once_and_given_back_after_its_last_pod() {
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    let mount = node.device(json!({}));
    node.set_up(&mount, "a").await.unwrap();
    assert_eq!(fs::read_link(&mount.path).unwrap(), node.at("dev/sda"));
    let calls = node.calls();
    assert_eq!(calls.len(), 7, "{calls:?}");
    assert_eq!(brief(&calls)[0], "-m iface -I default -o show");
    assert!(calls[5].ends_with("--login"), "{calls:?}");

    // Another pod and a restarted agent find the session.
    node.set_up(&mount, "b").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
    node.tear_down("a").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
    let next = node.next();
    next.tear_down("b").await.unwrap();
    let node_record = "-m node -p 192.0.2.1:3260 -T iqn.2001-04.test:a -I default -o delete";
    assert_eq!(brief(&next.calls()), ["-m session -r 1 --logout", node_record]);
    assert_eq!(fs::read_to_string(next.at("sys/block/sda/device/delete")).unwrap(), "1");
    assert!(!mount.disk.directory(&next.disks.directory).exists());
    next.tear_down("b").await.unwrap();
    assert_eq!(next.calls(), [] as [String; 0]);
}

#[tokio::test]
async fn a_session_of_another_client_is_used_and_left() {
    let node = Fixture::new();
    sessions::tests::put(&node.at("sys"), 1, "default", PORTAL.parse().unwrap(), &[(0, "sda")]);
    fs::write(node.at("dev/sda"), "").unwrap();
    let mount = node.device(json!({}));
    node.set_up(&mount, "a").await.unwrap();
    node.tear_down("a").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
    assert_eq!(fs::read_to_string(node.at("sys/block/sda/device/delete")).unwrap(), "");
}

#[tokio::test]
async fn a_session_ends_with_the_last_disk_of_its_target() {
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda"), (1, "sdb")]);
    let (first, second) = (node.device(json!({})), node.device(json!({"lun": 1})));
    node.set_up(&first, "a").await.unwrap();
    node.set_up(&second, "b").await.unwrap();
    node.calls();
    node.tear_down("a").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
    assert_eq!(fs::read_to_string(node.at("sys/block/sda/device/delete")).unwrap(), "1");
    assert_eq!(fs::read_to_string(node.at("sys/block/sdb/device/delete")).unwrap(), "");
    node.tear_down("b").await.unwrap();
    assert_eq!(brief(&node.calls())[0], "-m session -r 1 --logout");
}

#[tokio::test]
async fn a_disk_that_appears_late_is_waited_for() {
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    fs::remove_file(node.at("dev/sda")).unwrap();
    let mount = node.device(json!({}));
    let appears = async {
        let scan = node.at("sys/class/scsi_host/host3/scan");
        while fs::read_to_string(&scan).unwrap_or_default() != "0 0 0" {
            tokio::task::yield_now().await;
        }
        fs::write(node.at("dev/sda"), "").unwrap();
    };
    let (set_up, ()) = tokio::join!(node.set_up(&mount, "a"), appears);
    set_up.unwrap();
}

#[tokio::test]
async fn a_portal_that_fails_leaves_the_others() {
    let node = Fixture::new();
    node.session_at_login(1, "192.0.2.2:3260", &[(0, "sda")]);
    let script = fs::read_to_string(node.at("tools/iscsiadm")).unwrap();
    let refusal =
        "case \"$call\" in *\"-p 192.0.2.1:3260 \"*--discover) echo 'cannot make connection' >&2; exit 4;; esac";
    fs::write(node.at("tools/iscsiadm"), format!("{script}{refusal}\n")).unwrap();
    fs::create_dir_all(node.at("sys/block/sda/holders/dm-3")).unwrap();
    fs::create_dir_all(node.at("sys/block/dm-3/dm")).unwrap();
    fs::write(node.at("sys/block/dm-3/dm/uuid"), "mpath-1\n").unwrap();
    let mount = node.device(json!({"portals": ["192.0.2.2"]}));
    node.set_up(&mount, "a").await.unwrap();
    assert_eq!(fs::read_link(&mount.path).unwrap(), node.at("dev/dm-3"));
    // The start of another container does not retry it.
    node.calls();
    node.set_up(&mount, "a").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);

    let alone = node.device(json!({"lun": 0}));
    let error = node.set_up(&alone, "b").await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"data\" : mount 192.0.2.1:3260-iqn.2001-04.test:a-lun-0: failed to get any \
         path for iscsi disk, last err seen: iscsi: failed to sendtargets to portal 192.0.2.1:3260: cannot make connection"
    );
    let calls = brief(&node.calls());
    assert_eq!(calls.last().unwrap(), "-m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default -o delete");
}

#[tokio::test]
async fn a_node_without_the_tool_names_its_package() {
    let node = Fixture::new();
    fs::remove_file(node.at("tools/iscsiadm")).unwrap();
    let error = node.set_up(&node.device(json!({})), "a").await.unwrap_err();
    assert!(error.contains("iscsiadm is not on this node: install open-iscsi"), "{error}");
    node.tool("iscsiadm", "exit 21");
    node.tear_down("a").await.unwrap();
}

#[tokio::test]
async fn a_blank_disk_gets_a_file_system_and_a_pod_its_mount() {
    if need::root("mounts").is_none() {
        return;
    }
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    node.file_system_tools();
    let (first, second) = (node.mounted(false, "a"), node.mounted(true, "b"));
    node.set_up(&first, "a").await.unwrap();
    fs::write(first.path.join("file"), "kept").unwrap();
    node.set_up(&first, "a").await.unwrap();
    node.set_up(&second, "b").await.unwrap();
    assert_eq!(fs::read_to_string(second.path.join("file")).unwrap(), "kept");
    let device = node.at("dev/sda");
    let calls = node.calls();
    let shared = record::mount_point(&first.disk.directory(&node.disks.directory));
    let expected = [
        format!("blkid -p -s TYPE -s PTTYPE -o export {}", device.display()),
        format!("mkfs.ext4 -m0 {}", device.display()),
        format!("mount -t ext4 -o defaults {} {}", device.display(), shared.display()),
    ];
    assert_eq!(calls[calls.len() - 3..], expected);
    node.tear_down("a").await.unwrap();
    assert!(!mounted::is_mounted(&first.path).unwrap() && mounted::is_mounted(&second.path).unwrap());
    node.tear_down("b").await.unwrap();
    assert_eq!(node.calls()[0], format!("umount {}", shared.display()));
    assert!(!shared.exists());

    let error = node.set_up(&node.mounted(true, "c"), "c").await.unwrap_err();
    assert!(error.contains("cannot mount unformatted disk"), "{error}");
    node.tear_down("c").await.unwrap();
}

#[tokio::test]
async fn a_pod_that_has_ended_gives_its_disk_back_and_keeps_its_other_volumes() {
    if need::root("mounts").is_none() {
        return;
    }
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    node.file_system_tools();
    let mount = node.mounted(false, "a");
    node.set_up(&mount, "a").await.unwrap();
    let pod_dir = node.at("root/pods/a");
    let part = crate::volume::sub_path::directory(&pod_dir, "data").join("main/0");
    let other = pod_dir.join("volumes/kubernetes.io~secret/data");
    for path in [&part, &other] {
        fs::create_dir_all(path).unwrap();
    }
    rustix::mount::mount_bind(&mount.path, &part).unwrap();
    rustix::mount::mount("none", &other, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    node.tear_down("a").await.unwrap();
    let is_mounted = |path: &Path| mounted::is_mounted(path).unwrap();
    let states = [is_mounted(&mount.path), is_mounted(&part), is_mounted(&other)];
    crate::volume::removal::detach_below(&node.at("root")).unwrap();
    assert_eq!(states, [false, false, true]);
    assert_eq!(fs::read_to_string(node.at("sys/block/sda/device/delete")).unwrap(), "1");
}

#[tokio::test]
async fn a_disk_is_in_use_until_it_is_detached() {
    const NAME: &str = "kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.test:a:0";
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    let mount = node.device(json!({}));
    node.set_up(&mount, "a").await.unwrap();
    node.set_up(&mount, "b").await.unwrap();
    assert_eq!(node.in_use(), [NAME]);
    node.tear_down("a").await.unwrap();
    assert_eq!(node.in_use(), [NAME]);

    let next = node.next();
    assert_eq!(next.in_use(), [] as [&str; 0]);
    next.disks.find_in_use().await.unwrap();
    assert_eq!(next.in_use(), [NAME]);
    next.tool("iscsiadm", "echo busy >&2; exit 9");
    let error = next.tear_down("b").await.unwrap_err();
    assert!(error.contains("busy"), "{error}");
    assert_eq!(next.in_use(), [NAME]);
    next.tool("iscsiadm", "");
    next.tear_down("b").await.unwrap();
    assert_eq!(next.in_use(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_disk_that_is_not_blank_or_not_checked_is_neither_formatted_nor_mounted() {
    let node = Fixture::new();
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    node.file_system_tools();
    let (mount, disk) = (node.mounted(false, "a"), node.at("dev/sda"));
    let refused = async |why: &str| {
        let error = node.set_up(&mount, "a").await.unwrap_err();
        assert!(error.contains(why), "{error}");
        let calls = node.calls();
        assert!(!calls.iter().any(|call| call.starts_with("mkfs") || call.starts_with("mount")), "{calls:?}");
    };
    fs::write(&disk, "something that blkid does not know").unwrap();
    refused("has no file system that blkid knows, and is not blank").await;
    fs::write(&disk, "").unwrap();
    refused("is not formatted because it cannot be read: its size is 0").await;
    fs::write(&disk, [0; 4096]).unwrap();
    node.tool("blkid", "echo 'Input/output error' >&2; exit 2");
    refused("failed to get disk format of disk").await;
    node.tool("blkid", "echo TYPE=ext4");
    node.tool("fsck.ext4", "");
    node.tool("fsck", "kill -9 $$");
    refused("was ended by a signal").await;
}

#[tokio::test]
async fn a_session_that_another_program_opens_after_a_failed_login_stays() {
    let node = Fixture::new();
    let mount = node.device(json!({}));
    for failing in ["--discover", "--login"] {
        node.tool("iscsiadm", &format!("case \"$call\" in *{failing}) exit 8;; esac"));
        node.set_up(&mount, "a").await.unwrap_err();
        let records = record::all(&node.disks.directory).unwrap();
        assert_eq!(records[0].logged_in, [], "{failing}");
    }
    // The other program is faster than limpet: the login finds a session.
    node.session_at_login(1, PORTAL, &[(0, "sda")]);
    let script = fs::read_to_string(node.at("tools/iscsiadm")).unwrap();
    let exists = "case \"$call\" in *--login) exit 15;; esac";
    fs::write(node.at("tools/iscsiadm"), format!("{script}{exists}\n")).unwrap();
    node.set_up(&mount, "a").await.unwrap();
    node.calls();
    node.tear_down("a").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
    assert_eq!(fs::read_to_string(node.at("sys/block/sda/device/delete")).unwrap(), "");
}

#[tokio::test]
async fn the_record_of_a_session_that_stays_is_left() {
    let node = Fixture::new();
    let mount = node.device(json!({}));
    let after_a_reboot = |uid: &str| {
        let record = record::begin(&node.disks.directory, &mount.disk, String::new(), &PodUid::new(uid)).unwrap();
        let logged_in = mount.disk.portals.clone();
        record::save(&node.disks.directory, &Record { boot: "before".to_owned(), logged_in, ..record }).unwrap();
    };
    let forget = "-m node -p 192.0.2.1:3260 -T iqn.2001-04.test:a -I default -o delete";
    after_a_reboot("a");
    node.tool("iscsiadm", "exit 15");
    node.tear_down("a").await.unwrap();
    assert_eq!(brief(&node.calls()), [forget]);

    sessions::tests::put(&node.at("sys"), 1, "default", PORTAL.parse().unwrap(), &[(0, "sda")]);
    after_a_reboot("b");
    node.tear_down("b").await.unwrap();
    assert_eq!(node.calls(), [] as [String; 0]);
}

#[tokio::test]
async fn a_target_that_does_not_answer_keeps_no_other_waiting() {
    let node = Fixture::new();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (began, waits) = tokio::sync::oneshot::channel();
    let slow = node.disks.on_kernel("iqn.slow", attach::TARGET_DEADLINE, move |_| {
        began.send(()).unwrap();
        Ok(held.recv().is_ok())
    });
    let other = async {
        waits.await.unwrap();
        let result = node.disks.on_kernel("iqn.other", DEADLINE, |_| Ok(7)).await;
        release.send(()).unwrap();
        result
    };
    assert_eq!(tokio::join!(slow, other), (Ok(true), Ok(7)));
}
