//! Registers each metric with its name and help text.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::labels::NodeLabel;
use super::process::ProcessCollector;
use limpet_model::node::architecture;
use limpet_model::{POD_API, kubelet_version};

impl Metrics {
    /// A registry with all metrics.
    pub(super) fn register(&self, node_name: &str) -> Registry {
        let mut all = Registry::default();
        // The encoder adds `_total` to counters. Metrics with kubelet's names have kubelet's help texts (kubelet
        // 1.37.1).
        self.register_pods(&mut all);
        self.register_containers(&mut all);
        self.probes.register(&mut all);
        self.requests.register(&mut all);
        let node = Family::<NodeLabel, Gauge>::default();
        node.get_or_create(&NodeLabel { node: node_name.to_owned() }).set(1);
        all.register("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", node);
        let help = "When the last upgrade of limpet ended, in Unix time, by its outcome";
        all.register("limpet_last_upgrade_timestamp_seconds", help, self.last_upgrade.clone());
        let help =
            "What happened to generations of a source: Started, Committed, Undone, Waiting, NotReady, RolledBack";
        all.register("limpet_generation_changes", help, self.generations.clone());
        let help = "The number of the generation of a source that runs";
        all.register("limpet_generation_running", help, self.generation_running.clone());
        let help = "The serial of the signed bundle that the node has; 0 after limpet bundle reset-serial";
        all.register("limpet_bundle_serial", help, self.bundle_serial.clone());
        all.register("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.", self.cgroup_version.clone());
        let help = "[ALPHA] Last graceful shutdown start time since unix epoch in seconds";
        all.register("kubelet_graceful_shutdown_start_time_seconds", help, self.shutdown_start.clone());
        let help = "[ALPHA] Last graceful shutdown end time since unix epoch in seconds";
        all.register("kubelet_graceful_shutdown_end_time_seconds", help, self.shutdown_end.clone());
        let help = "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git \
                    tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on \
                    which it is running.";
        all.register("kubernetes_build", help, build_info());
        all.register("limpet_manifests_rejected", "Manifests refused by their source now", self.rejected.clone());
        all.register(
            "limpet_manifest_rejected",
            "Faults for which manifests were refused",
            self.manifest_rejected.clone(),
        );
        all.register(
            "limpet_source_last_success_timestamp_seconds",
            "When a source last read everything",
            self.source_success.clone(),
        );
        all.register("limpet_source_healthy", "1 while a source can be read", self.source_healthy.clone());
        all.register(
            "limpet_containerd_connected",
            "1 while containerd's event stream is open",
            self.containerd_connected.clone(),
        );
        self.apiserver.register(&mut all);
        all.register(
            "limpet_manifest_watch_backend",
            "1 for the active backend that attributes manifest changes; inotify: none does",
            self.manifest_watch.clone(),
        );
        all.register(
            "limpet_manifest_watch_fallbacks",
            "How often a requested or active backend failed",
            self.manifest_watch_lost.clone(),
        );
        all.register(
            "limpet_manifest_writes_by_pod",
            "Changes in the manifest directory made by processes of pods",
            self.writes_by_pod.clone(),
        );
        all.register(
            "limpet_manifest_guard_attempts",
            "Changes that the manifest guard denied, or would have denied",
            self.guarded.clone(),
        );
        let help = "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or \
                    image age.";
        all.register("kubelet_image_garbage_collected", help, self.images_removed.clone());
        let help = "[ALPHA] Cumulative number of pod evictions by eviction signal";
        all.register("kubelet_evictions", help, self.evictions.clone());
        self.claims.register(&mut all);
        self.volumes.register(&mut all);
        let help = "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.";
        all.register("kubelet_cgroup_manager_duration_seconds", help, self.cgroup_seconds.clone());
        all.register(
            "limpet_node_pressure",
            "1 while the node has the condition: it is short of something",
            self.node_pressure.clone(),
        );
        all.register("limpet_merge_changes", "Changes the merge passed on", self.merge_changes.clone());
        all.register("limpet_merge_duration_seconds", "Seconds a merge took", self.merge_seconds.clone());
        all.register_collector(Box::new(ProcessCollector));
        all
    }

    fn register_pods(&self, all: &mut Registry) {
        let help = "[ALPHA] Number of pods that have a running pod sandbox";
        all.register("kubelet_running_pods", help, self.running_pods.clone());
        let help = "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is \
                    not from the apiserver.";
        all.register("kubelet_desired_pods", help, self.desired_pods.clone());
        let help = "[ALPHA] The number of pods the kubelet considers active and which are being considered when \
                    admitting new pods. static is true if the pod is not from the apiserver.";
        all.register("kubelet_active_pods", help, self.active_pods.clone());
        all.register("kubelet_started_pods", "[ALPHA] Cumulative number of pods started", self.started_pods.clone());
        let help = "[ALPHA] Cumulative number of errors when starting pods";
        all.register("kubelet_started_pods_errors", help, self.started_pods_errors.clone());
        let help =
            "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
        all.register("kubelet_pod_start_duration_seconds", help, self.pod_start.clone());
    }

    fn register_containers(&self, all: &mut Registry) {
        let help = "[ALPHA] Number of containers currently running";
        all.register("kubelet_running_containers", help, self.running_containers.clone());
        let help = "[ALPHA] Cumulative number of containers started";
        all.register("kubelet_started_containers", help, self.started_containers.clone());
        let help = "[ALPHA] Cumulative number of errors when starting containers";
        all.register("kubelet_started_containers_errors", help, self.started_containers_errors.clone());
        let help = "[ALPHA] Cumulative number of container terminations.";
        all.register("kubelet_terminated_containers", help, self.terminated_containers.clone());
        self.pulls.register(all);
        let help = "[ALPHA] Cumulative number of runtime operations by operation type.";
        all.register("kubelet_runtime_operations", help, self.operations.clone());
        let help = "[ALPHA] Cumulative number of runtime operation errors by operation type.";
        all.register("kubelet_runtime_operations_errors", help, self.operation_errors.clone());
        let help = "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
        all.register("kubelet_runtime_operations_duration_seconds", help, self.operation_seconds.clone());
    }
}

type BuildLabels = Vec<(&'static str, String)>;

/// Omits what only a Go build could report.
fn build_info() -> Info<BuildLabels> {
    let (major, minor) = POD_API.trim_start_matches('v').split_once('.').unwrap_or_default();
    Info::new(vec![
        ("git_version", kubelet_version()),
        ("major", major.to_owned()),
        ("minor", minor.to_owned()),
        ("platform", format!("linux/{}", architecture())),
    ])
}
