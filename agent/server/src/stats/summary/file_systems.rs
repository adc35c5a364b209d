//! The usage of file systems by the node, its images, a pod, a container or a volume: kubelet's `FsStats`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{object, time};
use limpet_host::disk_usage::{DiskUsage, Walk};
use limpet_host::file_system::Space;
use limpet_model::pod::PodUid;
use limpet_telemetry::usage::NodeUsage;
use limpet_telemetry::usage::disks::{ContainerDisk, Dated, Disks, ImageDisk, PodDisk, VolumeDisk};

/// The file systems of one summary.
#[derive(Clone, Copy)]
pub(super) struct FileSystems<'a> {
    /// The file system of the agent's root directory, with the time of its reading.
    node: (Option<Space>, Timestamp),
    /// The disks' measurement; `None` if it was not requested.
    disks: Option<&'a Disks>,
}

#[derive(Clone, Copy)]
pub(super) struct OfPod<'a> {
    all: FileSystems<'a>,
    measured: Option<&'a Dated<PodDisk>>,
}

impl<'a> FileSystems<'a> {
    pub(super) fn new(usage: &NodeUsage, disks: Option<&'a Disks>) -> Self {
        Self { node: (usage.disk, usage.group.taken.at), disks }
    }

    /// The node's root file system.
    pub(super) fn of_node(self) -> Value {
        let (space, at) = self.node;
        space.map_or(Value::Null, |space| stats(at, Some(space), Some(space.used())))
    }

    /// The file system of images, which also has the containers' layers.
    pub(super) fn of_images(self) -> Value {
        let Some(Dated { at, value: ImageDisk { space, used }, .. }) = self.images() else { return Value::Null };
        let stats = stats(*at, *space, Some(*used));
        json!({ "imageFs": stats, "containerFs": stats })
    }

    pub(super) fn of_pod(self, uid: &PodUid) -> OfPod<'a> {
        let measured = self.disks.and_then(|disks| disks.pods.get(uid));
        OfPod { all: self, measured: measured.map(|pod| &**pod) }
    }

    fn images(self) -> Option<&'a Dated<ImageDisk>> {
        self.disks?.images.as_ref()
    }
}

impl OfPod<'_> {
    /// A container's layer and its logs. A container that was started after the measurement has no layer in it.
    pub(super) fn of_container(self, name: &str, id: &str) -> (Value, Value) {
        let Some(Dated { at, value, .. }) = self.measured else { return (Value::Null, Value::Null) };
        let measured = |disk: &&ContainerDisk| disk.name == name;
        let Some(container) = value.containers.iter().find(measured) else { return (Value::Null, Value::Null) };
        let space = self.all.images().and_then(|images| images.value.space);
        let layer = container.layer.filter(|_| container.id == id);
        let layer = layer.map_or(Value::Null, |used| stats(*at, space, Some(used)));
        let logs = container.logs.and_then(Walk::whole);
        (layer, logs.map_or(Value::Null, |used| stats(*at, self.all.node.0, Some(used))))
    }

    /// The pod's volumes; `namespace` is the pod's.
    pub(super) fn volumes(self, namespace: &str) -> Value {
        let Some(Dated { at, value, .. }) = self.measured else { return Value::Null };
        let volume = |disk: &VolumeDisk| {
            let mut stats = stats(*at, disk.space, disk.used.and_then(Walk::whole));
            stats["name"] = json!(disk.name);
            if let Some(claim) = &disk.claim {
                stats["pvcRef"] = json!({ "name": claim, "namespace": namespace });
            }
            stats
        };
        let volumes: Vec<Value> = value.volumes.iter().map(volume).collect();
        if volumes.is_empty() { Value::Null } else { json!(volumes) }
    }

    /// The pod's ephemeral storage.
    pub(super) fn ephemeral(self) -> Value {
        let Some(Dated { at, value, .. }) = self.measured else { return Value::Null };
        stats(*at, self.all.node.0, value.ephemeral())
    }
}

fn stats(at: Timestamp, space: Option<Space>, used: Option<DiskUsage>) -> Value {
    // A file system that creates inodes on demand reports none.
    let counted = space.filter(|space| space.inodes > 0);
    let counts_inodes = space.is_none() || counted.is_some();
    object([
        ("time", time(Some(at))),
        ("availableBytes", json!(space.map(|space| space.available))),
        ("capacityBytes", json!(space.map(|space| space.capacity))),
        ("usedBytes", json!(used.map(|used| used.bytes))),
        ("inodesFree", json!(counted.map(|space| space.inodes_free))),
        ("inodes", json!(counted.map(|space| space.inodes))),
        ("inodesUsed", json!(used.filter(|_| counts_inodes).map(|used| used.inodes))),
    ])
}
