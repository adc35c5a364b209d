#![allow(clippy::unwrap_used)]
//! Tests with real pod directories. Tests that mount need root and are skipped without.

mod labels;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::mount::UnmountFlags;
use serde_json::json;

use limpet_tests::need;

use super::*;
use crate::blocking::Progress;
use crate::mount_table;
use crate::mount_table::is_mount_point;
use k8s_openapi::api::core::v1::Pod;
use limpet_model::object::ObjectKind;
use limpet_model::pod::compute_resources::pod_limits;
use limpet_model::pod::qos::qos_class;
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::{Fingerprint, PodKey};
use limpet_model::source::SourceKind;

/// A pod `default/web-node` with `spec`.
pub(super) fn record(spec: serde_json::Value) -> PodRecord {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
    let spec = pod.spec.as_ref().unwrap();
    PodRecord {
        ephemeral: Vec::new(),
        qos_class: qos_class(spec),
        cgroup_limits: pod_limits(spec),
        key: PodKey::new("default", "web-node"),
        uid: PodUid::new("uid"),
        fingerprint: Fingerprint([0; 16]),
        immutable_fingerprint: Fingerprint([0; 16]),
        source: SourceKind::File,
        origin: "web.yaml".into(),
        manifest: Arc::from(&b"{}"[..]),
        pod,
    }
}

/// A node with its root directory and its own files. Its mounts are detached at the end of the test.
pub(super) struct Node {
    pub dir: tempfile::TempDir,
    pub volumes: Volumes,
}

impl Node {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("resolv.conf"), "nameserver 10.0.0.1\n").unwrap();
        std::fs::write(dir.path().join("hosts"), "127.0.0.1 localhost\n").unwrap();
        let settings = Settings {
            configured: VolumeSettings {
                resolv_conf: Some(dir.path().join("resolv.conf")),
                plugin_dir: dir.path().join("plugins"),
                ..VolumeSettings::default()
            },
            root_dir: dir.path().join("root"),
            hosts_file: dir.path().join("hosts"),
            limits: NodeLimits {
                cpu: Amount::from_units(1),
                memory: Amount::from_units(1 << 30),
                ephemeral_storage: Amount::from_units(1 << 33),
            },
            local_dns: LocalDns::default(),
        };
        Self { dir, volumes: Volumes::new(settings, VolumesInUse::default()) }
    }

    pub(super) fn pod_dir(&self) -> PathBuf {
        self.dir.path().join("root/pods/uid")
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.pod_dir().join("volumes/kubernetes.io~empty-dir").join(name)
    }

    pub(super) async fn prepare(&self, spec: serde_json::Value) -> Result<Vec<Warning>, VolumeError> {
        let addresses = PodAddresses { ips: vec!["10.1.0.5".parse().unwrap()] };
        self.volumes.prepare(&record(spec), &PodObjects::default(), &addresses, "web-node").await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for mounted in mount_table::mount_points().unwrap().iter().rev() {
            if mounted.starts_with(self.dir.path()) {
                let _ = rustix::mount::unmount(mounted, UnmountFlags::DETACH);
            }
        }
    }
}

fn root() -> bool {
    need::root("mounts and groups").is_some()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_pods_files_are_created() {
    let node = Node::new();
    let warnings = node.prepare(json!({"dnsPolicy": "Default"})).await.unwrap();
    assert_eq!(warnings, []);
    let read = |name: &str| std::fs::read_to_string(node.pod_dir().join(name)).unwrap();
    assert!(read("etc-hosts").ends_with("10.1.0.5\tweb-node\n"));
    assert_eq!(read("etc-hostname"), "web-node\n");
    assert_eq!(read("etc-resolv.conf"), "nameserver 10.0.0.1\n");
    assert_eq!((mode(&node.pod_dir()), mode(&node.pod_dir().join("etc-hosts"))), (0o750, 0o644));
    assert_eq!(node.volumes.list().await, [PodUid::new("uid")]);

    let warnings = node.prepare(json!({"dnsPolicy": "ClusterFirst"})).await.unwrap();
    assert_eq!(warnings.iter().map(|warning| warning.reason).collect::<Vec<_>>(), ["MissingClusterDNS"]);
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
    assert_eq!(node.volumes.list().await, []);
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
}

#[tokio::test]
async fn host_network_takes_the_nodes_hosts() {
    let node = Node::new();
    let aliases = json!([{"ip": "10.0.0.9", "hostnames": ["db"]}]);
    node.prepare(json!({"hostNetwork": true, "hostAliases": aliases})).await.unwrap();
    let hosts = std::fs::read_to_string(node.pod_dir().join("etc-hosts")).unwrap();
    assert!(hosts.contains("(host network).\n127.0.0.1 localhost\n") && hosts.ends_with("10.0.0.9\tdb\n"), "{hosts}");
}

#[tokio::test]
async fn a_container_with_the_hosts_network_starts_with_the_nodes_hosts_of_then() {
    let node = Node::new();
    let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]});
    let nodes_file = node.dir.path().join("hosts");
    let hosts = || std::fs::read_to_string(node.pod_dir().join("etc-hosts")).unwrap();
    std::fs::write(&nodes_file, "127.0.0.1 localhost\n10.0.0.1 old\n").unwrap();
    node.prepare(spec.clone()).await.unwrap();
    let inode = std::fs::metadata(node.pod_dir().join("etc-hosts")).unwrap().ino();
    let pod = record(spec.clone());
    let start = |id: &str| {
        let (objects, progress) = (PodObjects::default(), Progress::new(node.dir.path()));
        node.volumes.mounts(&pod, &objects, &pod.spec().containers[0], id, None, &progress).unwrap();
    };
    let head = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n";
    for text in ["127.0.0.1 localhost\n10.0.0.2 new\n", "127.0.0.1 localhost\n"] {
        std::fs::write(&nodes_file, text).unwrap();
        start("id");
        assert!(hosts().ends_with(text) && hosts().starts_with(head), "{}", hosts());
    }
    assert_eq!((hosts().as_str(), std::fs::metadata(node.pod_dir().join("etc-hosts")).unwrap().ino()), (head, inode));
    // A new sandbox, as after a reboot, lacks the line that was removed from the node's file.
    std::fs::write(&nodes_file, "127.0.0.1 localhost\n10.0.0.3 more\n").unwrap();
    node.prepare(spec.clone()).await.unwrap();
    std::fs::write(&nodes_file, "127.0.0.1 localhost\n").unwrap();
    node.prepare(spec).await.unwrap();
    assert_eq!(hosts(), head);
}

#[tokio::test]
async fn preparing_again_keeps_files_written_by_containers() {
    let node = Node::new();
    let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
    node.prepare(spec.clone()).await.unwrap();
    assert_eq!(mode(&node.volume("data")), 0o777);
    std::fs::write(node.volume("data").join("file"), "mine").unwrap();
    std::fs::set_permissions(node.volume("data"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let hosts = node.pod_dir().join("etc-hosts");
    let inode = std::fs::metadata(&hosts).unwrap().ino();
    let text = std::fs::read_to_string(&hosts).unwrap() + "10.9.9.9 mine\n";
    std::fs::write(&hosts, &text).unwrap();

    node.prepare(spec.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(node.volume("data").join("file")).unwrap(), "mine");
    assert_eq!(mode(&node.volume("data")), 0o700);
    assert_eq!(std::fs::read_to_string(&hosts).unwrap(), text);

    // Another address changes the content in the same inode, because containers have it mounted.
    let addresses = PodAddresses { ips: vec!["10.1.0.6".parse().unwrap()] };
    node.volumes.prepare(&record(spec), &PodObjects::default(), &addresses, "web-node").await.unwrap();
    assert!(std::fs::read_to_string(&hosts).unwrap().ends_with("10.1.0.6\tweb-node\n"));
    assert_eq!(std::fs::metadata(&hosts).unwrap().ino(), inode);
}

#[tokio::test]
async fn fs_group_owns_the_empty_dirs() {
    if !root() {
        return;
    }
    let node = Node::new();
    let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}]);
    node.prepare(json!({"volumes": volumes, "securityContext": {"fsGroup": 2000}})).await.unwrap();
    for (name, mode) in [("disk", 0o2777), ("ram", 0o3777)] {
        let metadata = std::fs::metadata(node.volume(name)).unwrap();
        assert_eq!((metadata.gid(), metadata.mode() & 0o7777), (2000, mode), "{name}");
        std::fs::write(node.volume(name).join("file"), "").unwrap();
        assert_eq!(std::fs::metadata(node.volume(name).join("file")).unwrap().gid(), 2000, "{name}");
    }
}

#[tokio::test]
async fn memory_is_a_tmpfs_of_its_limit_mounted_once() {
    if !root() {
        return;
    }
    let node = Node::new();
    let spec = json!({"volumes": [{"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]});
    node.prepare(spec.clone()).await.unwrap();
    let ram = node.volume("ram");
    std::fs::write(ram.join("file"), "kept").unwrap();
    node.prepare(spec.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(ram.join("file")).unwrap(), "kept");
    assert_eq!(mode(&ram), 0o1777);
    let full = std::fs::write(ram.join("big"), vec![0; 2 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

    // Simulates a reboot: the directory exists, the mount does not.
    rustix::mount::unmount(&ram, UnmountFlags::DETACH).unwrap();
    node.prepare(spec).await.unwrap();
    assert!(is_mount_point(&ram).unwrap());
    // A busy mount is detached too.
    let _busy = std::fs::File::create(ram.join("open")).unwrap();
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
    assert!(!node.pod_dir().exists());
}

/// A pod with volumes of all written kinds, and its objects with `value` in the Secret.
fn written(value: &str) -> (PodRecord, PodObjects) {
    let pod = record(json!({"securityContext": {"fsGroup": 2000}, "volumes": [
        {"name": "map", "configMap": {"name": "m"}},
        {"name": "own", "secret": {"secretName": "s"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}]}},
        {"name": "self", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]}));
    let objects = payload::tests::objects(
        &pod,
        &[
            json!({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "plain"}}),
            json!({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": value}}),
        ],
    );
    (pod, objects)
}

#[tokio::test]
async fn secrets_are_on_a_tmpfs_and_follow_their_object() {
    if !root() {
        return;
    }
    let node = Node::new();
    let (pod, objects) = written("one");
    node.volumes.prepare(&pod, &objects, &PodAddresses::default(), "web-node").await.unwrap();
    let dir = |plugin: &str, name: &str| node.pod_dir().join(format!("volumes/kubernetes.io~{plugin}/{name}"));
    let read = |plugin: &str, file: &str| std::fs::read_to_string(dir(plugin, file)).unwrap();
    let kinds = [("secret", "own"), ("projected", "all"), ("downward-api", "self")];
    assert!(kinds.iter().all(|(plugin, name)| is_mount_point(&dir(plugin, name)).unwrap()));
    assert!(!is_mount_point(&dir("configmap", "map")).unwrap());
    assert_eq!(read("secret", "own/k") + &read("projected", "all/k"), "oneone");
    assert_eq!(read("configmap", "map/k") + &read("downward-api", "self/name"), "plainweb-node");
    let metadata = std::fs::metadata(dir("secret", "own/k")).unwrap();
    assert_eq!((metadata.gid(), metadata.mode() & 0o7777), (2000, 0o644));

    assert_eq!(node.volumes.update(&pod, &objects).await.unwrap(), Vec::<String>::new());
    let changed = node.volumes.update(&pod, &written("two").1).await.unwrap();
    assert_eq!(changed, ["own", "all"]);
    assert_eq!(read("secret", "own/k") + &read("projected", "all/k"), "twotwo");

    // One volume's object is missing: that volume does not change, the others are updated.
    let (_, three) = written("three");
    let without = PodObjects::collect(&pod, |key| {
        three.iter().find(|o| o.key == *key && key.kind == ObjectKind::Secret).cloned()
    });
    let error = node.volumes.update(&pod, &without).await.unwrap_err();
    assert_eq!(error.to_string(), "MountVolume.SetUp failed for volume \"map\" : configmap \"m\" not found");
    assert_eq!((read("configmap", "map/k"), read("secret", "own/k")), ("plain".to_owned(), "three".to_owned()));
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
    assert!(!node.pod_dir().exists());
}

#[tokio::test]
async fn a_sub_path_is_bound_and_stays_within_its_volume() {
    if !root() {
        return;
    }
    let node = Node::new();
    let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
    node.prepare(spec.clone()).await.unwrap();
    let mounts = |sub_path: &str| {
        let container = json!({"name": "c", "volumeMounts": [
            {"name": "data", "mountPath": "/data", "subPath": sub_path},
        ]});
        node.volumes.mounts(
            &record(spec.clone()),
            &PodObjects::default(),
            &serde_json::from_value(container).unwrap(),
            "id",
            None,
            &Progress::new(&node.pod_dir()),
        )
    };
    let target = node.pod_dir().join("volume-subpaths/data/c/0");
    for _restart in 0..2 {
        let result = mounts("a/b").unwrap();
        assert_eq!((result[0].container_path.as_path(), &result[0].host_path), (Path::new("/data"), &target));
        assert_eq!(mode(&target), 0o777);
    }
    std::fs::write(target.join("seen"), "").unwrap();
    assert!(node.volume("data").join("a/b/seen").exists());

    std::os::unix::fs::symlink("/etc", node.volume("data").join("out")).unwrap();
    std::os::unix::fs::symlink("a/b", node.volume("data").join("in")).unwrap();
    assert!(matches!(mounts("out").unwrap_err(), VolumeError::SubPathEscapes { .. }));
    assert!(matches!(mounts("../x").unwrap_err(), VolumeError::SubPathEscapes { .. }));
    assert!(matches!(mounts("/etc").unwrap_err(), VolumeError::SubPathEscapes { .. }));
    assert_eq!(mounts("in").unwrap()[0].host_path, target);
    assert!(target.join("seen").exists());

    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
    assert!(!node.pod_dir().exists());
}

#[tokio::test]
async fn removal_does_not_delete_files_of_mounts_below() {
    if !root() {
        return;
    }
    let node = Node::new();
    node.prepare(json!({"volumes": [{"name": "data", "emptyDir": {}}]})).await.unwrap();
    let precious = node.dir.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("kept"), "").unwrap();
    let below = node.volume("data").join("a dir");
    std::fs::create_dir(&below).unwrap();
    rustix::mount::mount_bind(&precious, &below).unwrap();
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
    assert!(!node.pod_dir().exists());
    assert!(precious.join("kept").exists());
}

#[tokio::test]
async fn a_full_or_read_only_disk_is_named_with_its_remedy() {
    if !root() {
        return;
    }
    let node = Node::new();
    let root_dir = node.dir.path().join("root");
    std::fs::create_dir(&root_dir).unwrap();
    rustix::mount::mount("t", &root_dir, "tmpfs", rustix::mount::MountFlags::RDONLY, None).unwrap();
    let error = node.prepare(json!({})).await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot make directory ") && error.contains("/root/pods: Read-only file system"),
        "{error}"
    );
    assert!(error.contains("mount it writable"), "{error}");
    rustix::mount::unmount(&root_dir, UnmountFlags::DETACH).unwrap();
    let tiny = Some(c"nr_inodes=3");
    rustix::mount::mount("t", &root_dir, "tmpfs", rustix::mount::MountFlags::empty(), tiny).unwrap();
    let error = node.prepare(json!({})).await.unwrap_err().to_string();
    assert!(error.contains("No space left on device") && error.contains("df -i"), "{error}");
}
