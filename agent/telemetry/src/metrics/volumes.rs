//! Metrics of pods' volumes: how many exist and are wanted, and how long CSI drivers take to mount theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::pod::volume_kind::VolumeKind;

/// kubelet's buckets.
const SECONDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

const WANTED: &str = "desired_state_of_world";
const THERE: &str = "actual_state_of_world";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VolumeLabels {
    plugin_name: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    migrated: &'static str,
    operation_name: &'static str,
    status: &'static str,
    volume_plugin: String,
}

#[derive(Debug, Clone)]
pub(super) struct VolumeFigures {
    total: Family<VolumeLabels, Gauge>,
    seconds: Family<OperationLabels, Histogram>,
}

impl Default for VolumeFigures {
    fn default() -> Self {
        Self { total: Family::default(), seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)) }
    }
}

impl VolumeFigures {
    pub(super) fn register(&self, all: &mut Registry) {
        let help = "[ALPHA] Number of volumes in Volume Manager";
        all.register("volume_manager_total_volumes", help, self.total.clone());
        all.register("storage_operation_duration_seconds", "[BETA] Storage operation duration", self.seconds.clone());
    }

    pub(super) fn mounted(&self, driver: &str, took: Duration, succeeded: bool) {
        let labels = OperationLabels {
            migrated: "false",
            operation_name: "volume_mount",
            status: if succeeded { "success" } else { "fail-unknown" },
            volume_plugin: format!("kubernetes.io/csi:{driver}"),
        };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Replaces the counts by those of these pods.
    pub(super) fn take(&self, pods: &ObservedPods) {
        let mut counts: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for pod in pods.pods.values() {
            if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
                continue;
            }
            let there = i64::from(has_volumes(pod));
            for plugin in used_volumes(pod).map(plugin) {
                let (wanted, present) = counts.entry(plugin).or_default();
                *wanted += 1;
                *present += there;
            }
        }
        self.total.clear();
        for (plugin_name, (wanted, present)) in counts {
            for (state, count) in [(WANTED, wanted), (THERE, present)] {
                self.total.get_or_create(&VolumeLabels { plugin_name: plugin_name.clone(), state }).set(count);
            }
        }
    }
}

/// Whether the pod's volumes are prepared, so that its containers can start.
fn has_volumes(pod: &ObservedPod) -> bool {
    let conditions = pod.status.conditions.iter().flatten();
    conditions.into_iter().any(|condition| condition.type_ == "PodReadyToStartContainers" && condition.status == "True")
}

/// The volumes that kubelet's volume manager counts: those that a container mounts or uses as a device.
fn used_volumes(pod: &ObservedPod) -> impl Iterator<Item = &Volume> {
    let mut used = BTreeSet::new();
    for container in pod.record.containers() {
        used.extend(container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str()));
        used.extend(container.volume_devices.iter().flatten().map(|device| device.name.as_str()));
    }
    pod.record.spec().volumes.iter().flatten().filter(move |volume| used.contains(volume.name.as_str()))
}

/// kubelet's name of the volume's plugin. A driver's volumes have the driver's name.
fn plugin(volume: &Volume) -> String {
    match VolumeKind::find(volume) {
        Some(VolumeKind::Csi(csi)) => format!("kubernetes.io/csi:{}", csi.driver),
        Some(VolumeKind::FlexVolume(flex)) => flex.driver.clone(),
        Some(kind) => format!("kubernetes.io/{}", kind.plugin().name()),
        None => "kubernetes.io/unknown".to_owned(),
    }
}
