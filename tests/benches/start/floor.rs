//! The floor: what containerd and runc take for a container, called directly and one call after the other.

use std::path::Path;

use anyhow::{Context as _, Result};
use containerd_client::services::v1::container::Runtime;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    Container, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest, DeleteTaskRequest, KillRequest,
    StartRequest, WaitRequest,
};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Request, Status, metadata::MetadataValue};
use limpet_tests::TestNode;
use limpet_tests::containerd::NAMESPACE;
use limpet_tests::image::{self, V1};
use limpet_tests::life::Life;
use prost_types::Any;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime as Tokio;

const SNAPSHOTTER: &str = "overlayfs";

/// A minimal client and the container that it creates repeatedly.
pub(crate) struct Floor {
    tokio: Tokio,
    channel: Channel,
    parent: String,
    spec: Value,
    cgroup: String,
}

impl Floor {
    pub(crate) fn connect(node: &TestNode, life: &Life) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let channel = tokio.block_on(containerd_client::connect(node.containerd.socket()))?;
        let [image, _] = image::demo_images()?;
        let digests: Vec<_> = image.layers.iter().map(image::Blob::digest).collect();
        Ok(Self { tokio, channel, parent: chain_id(&digests), spec: spec(&life.dir), cgroup: node.cgroup().to_owned() })
    }

    /// Prepares a snapshot, creates a container that runs `script` and a task, and starts it.
    pub(crate) fn start(&self, id: &str, script: &str) -> Result<()> {
        self.tokio.block_on(self.start_container(id, script)).with_context(|| format!("start {id}"))
    }

    /// Removes all of that.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        self.tokio.block_on(self.remove_container(id)).with_context(|| format!("remove {id}"))
    }

    async fn start_container(&self, id: &str, script: &str) -> Result<()> {
        let mut snapshots = SnapshotsClient::new(self.channel.clone());
        let mut containers = ContainersClient::new(self.channel.clone());
        let mut tasks = TasksClient::new(self.channel.clone());
        let prepare = PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
            parent: self.parent.clone(),
            // Without this label containerd's collector may remove the snapshot before the container holds it, and the
            // mount fails.
            labels: [("containerd.io/gc.root".to_owned(), "2026-01-01T00:00:00Z".to_owned())].into(),
        };
        let rootfs = snapshots.prepare(request(prepare)).await?.into_inner().mounts;
        let mut spec = self.spec.clone();
        spec["process"]["args"] = json!(["/bin/sh", "-c", script]);
        spec["linux"]["cgroupsPath"] = json!(format!("/{}/{id}", self.cgroup));
        let container = Container {
            id: id.to_owned(),
            image: V1.to_owned(),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: id.to_owned(),
            runtime: Some(Runtime { name: "io.containerd.runc.v2".to_owned(), options: None }),
            spec: Some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/Spec".to_owned(),
                value: serde_json::to_vec(&spec)?,
            }),
            ..Default::default()
        };
        containers.create(request(CreateContainerRequest { container: Some(container) })).await?;
        let create = CreateTaskRequest { container_id: id.to_owned(), rootfs, ..Default::default() };
        tasks.create(request(create)).await?;
        tasks.start(request(StartRequest { container_id: id.to_owned(), ..Default::default() })).await?;
        Ok(())
    }

    /// Removes what exists of it, which after a failed start is only a part.
    async fn remove_container(&self, id: &str) -> Result<()> {
        let mut tasks = TasksClient::new(self.channel.clone());
        let id = id.to_owned();
        let kill = KillRequest { container_id: id.clone(), signal: 9, all: true, ..Default::default() };
        if exists(tasks.kill(request(kill)).await)? {
            exists(tasks.wait(request(WaitRequest { container_id: id.clone(), ..Default::default() })).await)?;
            exists(tasks.delete(request(DeleteTaskRequest { container_id: id.clone() })).await)?;
        }
        let mut containers = ContainersClient::new(self.channel.clone());
        exists(containers.delete(request(DeleteContainerRequest { id: id.clone() })).await)?;
        let mut snapshots = SnapshotsClient::new(self.channel.clone());
        let remove = RemoveSnapshotRequest { snapshotter: SNAPSHOTTER.to_owned(), key: id };
        exists(snapshots.remove(request(remove)).await)?;
        Ok(())
    }
}

/// Whether the subject of a call exists.
fn exists<T>(answer: Result<T, Status>) -> Result<bool, Status> {
    match answer {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status),
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// The snapshot key of the unpacked layers, as the image specification defines it.
fn chain_id(digests: &[String]) -> String {
    let mut layers = digests.iter();
    let lowest = layers.next().cloned().unwrap_or_default();
    layers.fold(lowest, |chain, layer| {
        let hash = Sha256::digest(format!("{chain} {layer}"));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    })
}

/// What a container of a pod on the host's network gets, too.
fn spec(life: &Path) -> Value {
    let capabilities = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FSETID",
        "CAP_FOWNER",
        "CAP_MKNOD",
        "CAP_NET_RAW",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SETFCAP",
        "CAP_SETPCAP",
        "CAP_NET_BIND_SERVICE",
        "CAP_SYS_CHROOT",
        "CAP_KILL",
        "CAP_AUDIT_WRITE",
    ];
    let mount = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
        },
        "root": { "path": "rootfs" },
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
            { "destination": "/life", "type": "bind", "source": life, "options": ["rbind", "rprivate", "rw"] },
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }], "cpu": { "shares": 2 } },
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "mount" }],
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"],
            "readonlyPaths": ["/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}
