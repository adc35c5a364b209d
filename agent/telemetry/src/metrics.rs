//! Metrics for Prometheus, with kubelet's names where it has the metric and the prefix `limpet_` otherwise.
//!
//! Counters and histograms are updated where things happen. State (running pods, health of the sources) is read from
//! snapshots at each scrape, so that it is not counted twice.

mod apiserver;
mod claims;
mod labels;
mod probe;
mod process;
mod pulls;
mod registration;
mod requests;
mod text_format;
mod volumes;

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStatus;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use apiserver::{ApiserverMetrics, NodeCertificate};
pub use claims::ClaimFigures;
use claims::ClaimGauges;
use labels::{
    BackendLabel, BundleLabel, ChangeLabel, ConditionLabel, ContainerState, GenerationLabels, OperationLabel,
    RejectionLabels, RemovalLabel, SignalLabel, SourceLabel, StartErrorLabels, StateLabel, Static, StaticLabel,
    TerminationLabels, TypeLabel, UpgradeLabel, VerdictLabel, WriterLabels,
};
pub use labels::{ContainerType, GuardVerdict, ImageRemoval, MergeChange, RejectionReason, UpgradeOutcome};
use limpet_core::eviction::Signal;
use limpet_core::source::SourceSnapshot;
use limpet_core::status::observed::ObservedPods;
use limpet_model::node::Pressure;
use limpet_model::pod::PodRecord;
use limpet_model::probe::ProbeKind;
use limpet_model::source::SourceKind;
use probe::ProbeCounters;
pub use probe::ProbeResult;
use pulls::PullSeconds;
use requests::RequestCounters;
pub use requests::{RequestKind, ServerType};
pub use text_format::CONTENT_TYPE;
use volumes::VolumeFigures;

/// The default buckets of Prometheus' clients, which kubelet uses where it names none.
const DEFAULT_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// kubelet's buckets for the start of a pod, with finer ones below its half second.
const POD_START_SECONDS: [f64; 20] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0,
];

/// The most containers with a separate time series for their writes to the manifest directory.
const MOST_WRITERS: usize = 50;

/// The node's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    running_pods: Gauge,
    running_containers: Family<StateLabel, Gauge>,
    desired_pods: Family<StaticLabel, Gauge>,
    active_pods: Family<StaticLabel, Gauge>,
    cgroup_version: Gauge,
    last_upgrade: Family<UpgradeLabel, Gauge<f64, AtomicU64>>,
    generations: Family<GenerationLabels, Counter>,
    generation_running: Family<SourceLabel, Gauge>,
    bundle_serial: Family<BundleLabel, Gauge<f64, AtomicU64>>,
    shutdown_start: Gauge<f64, AtomicU64>,
    shutdown_end: Gauge<f64, AtomicU64>,
    started_pods: Counter,
    started_pods_errors: Counter,
    started_containers: Family<TypeLabel, Counter>,
    started_containers_errors: Family<StartErrorLabels, Counter>,
    terminated_containers: Family<TerminationLabels, Counter>,
    pulls: PullSeconds,
    requests: RequestCounters,
    pod_start: Histogram,
    probes: ProbeCounters,
    operations: Family<OperationLabel, Counter>,
    operation_errors: Family<OperationLabel, Counter>,
    operation_seconds: Family<OperationLabel, Histogram>,
    rejected: Gauge,
    manifest_rejected: Family<RejectionLabels, Counter>,
    source_healthy: Family<SourceLabel, Gauge>,
    source_success: Family<SourceLabel, Gauge<f64, AtomicU64>>,
    containerd_connected: Gauge,
    /// Has no series outside a cluster.
    apiserver: ApiserverMetrics,
    merge_changes: Family<ChangeLabel, Counter>,
    merge_seconds: Histogram,
    manifest_watch: Family<BackendLabel, Gauge>,
    manifest_watch_lost: Family<BackendLabel, Counter>,
    writes_by_pod: Family<WriterLabels, Counter>,
    guarded: Family<VerdictLabel, Counter>,
    images_removed: Family<RemovalLabel, Counter>,
    evictions: Family<SignalLabel, Counter>,
    claims: ClaimGauges,
    volumes: VolumeFigures,
    cgroup_seconds: Family<OperationLabel, Histogram>,
    node_pressure: Family<ConditionLabel, Gauge>,
    /// The containers with their own label in `writes_by_pod`.
    writers: Arc<Mutex<HashSet<WriterLabels>>>,
}

impl Metrics {
    /// Metrics of the node with this name.
    pub fn new(node_name: &str) -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            running_pods: Gauge::default(),
            running_containers: Family::default(),
            desired_pods: Family::default(),
            active_pods: Family::default(),
            cgroup_version: Gauge::default(),
            last_upgrade: Family::default(),
            generations: Family::default(),
            generation_running: Family::default(),
            bundle_serial: Family::default(),
            shutdown_start: Gauge::default(),
            shutdown_end: Gauge::default(),
            started_pods: Counter::default(),
            started_pods_errors: Counter::default(),
            started_containers: Family::default(),
            started_containers_errors: Family::default(),
            terminated_containers: Family::default(),
            pulls: PullSeconds::default(),
            requests: RequestCounters::default(),
            pod_start: Histogram::new(POD_START_SECONDS),
            probes: ProbeCounters::default(),
            operations: Family::default(),
            operation_errors: Family::default(),
            operation_seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.5, 14))),
            rejected: Gauge::default(),
            manifest_rejected: Family::default(),
            source_healthy: Family::default(),
            source_success: Family::default(),
            containerd_connected: Gauge::default(),
            apiserver: ApiserverMetrics::default(),
            merge_changes: Family::default(),
            merge_seconds: Histogram::new(exponential_buckets(1e-6, 4.0, 10)),
            manifest_watch: Family::default(),
            manifest_watch_lost: Family::default(),
            writes_by_pod: Family::default(),
            guarded: Family::default(),
            images_removed: Family::default(),
            evictions: Family::default(),
            claims: ClaimGauges::default(),
            volumes: VolumeFigures::default(),
            cgroup_seconds: Family::new_with_constructor(|| Histogram::new(DEFAULT_SECONDS)),
            node_pressure: Family::default(),
            writers: Arc::default(),
        };
        metrics.registry = Arc::new(metrics.register(node_name));
        metrics
    }

    /// Counts the beginning of a pod's start.
    pub fn pod_start_begun(&self) {
        self.started_pods.inc();
    }

    /// Counts a pod that could not be started: its sandbox, volumes or network failed.
    pub fn pod_start_failed(&self) {
        self.started_pods_errors.inc();
    }

    /// Records that all containers of a pod are running, `took` after the pod was first seen.
    pub fn pod_started(&self, took: Duration) {
        self.pod_start.observe(took.as_secs_f64());
    }

    /// Counts the beginning of a container's start.
    pub fn container_start_begun(&self, container_type: ContainerType) {
        self.started_containers.get_or_create(&TypeLabel { container_type }).inc();
    }

    /// Counts a container that could not be started; `code` is kubelet's reason: `CreateContainerError`,
    /// `ErrImagePull`, …
    pub fn container_start_failed(&self, container_type: ContainerType, code: &'static str) {
        self.started_containers_errors.get_or_create(&StartErrorLabels { container_type, code }).inc();
    }

    /// Counts a container's end; `reason` is the one in its status.
    pub fn container_terminated(&self, container_type: ContainerType, exit_code: i32, reason: &str) {
        let reason = reason.to_owned();
        self.terminated_containers.get_or_create(&TerminationLabels { container_type, exit_code, reason }).inc();
    }

    /// Records an image's pull: its size in bytes and its duration.
    pub fn image_pulled(&self, bytes: u64, took: Duration) {
        self.pulls.observe(bytes, took);
    }

    /// Records the answer to a request to a listener of the agent, after `took`.
    pub fn request_answered(&self, kind: &RequestKind, took: Duration) {
        self.requests.answered(kind, took);
    }

    /// Counts a WebSocket to the route with this prefix, in a protocol that needs no translation.
    pub fn websocket_opened(&self, path: &str) {
        self.requests.websocket_opened(path);
    }

    /// Records the version of the node's cgroups.
    pub fn set_cgroup_version(&self, version: i64) {
        self.cgroup_version.set(version);
    }

    /// Records when and how the newest upgrade of limpet ended.
    pub fn set_last_upgrade(&self, outcome: UpgradeOutcome, at: Timestamp) {
        self.last_upgrade.clear();
        self.last_upgrade.get_or_create(&UpgradeLabel { outcome }).set(at.as_duration().as_secs_f64());
    }

    /// Counts what has happened to a generation of a source; `reason` is that of its event.
    pub fn generation_changed(&self, source: SourceKind, reason: &'static str) {
        let change = reason.strip_prefix("Generation").unwrap_or(reason);
        self.generations.get_or_create(&GenerationLabels { source: source.as_str(), change }).inc();
    }

    /// Records which generation of each source runs.
    pub fn set_generations(&self, running: impl IntoIterator<Item = (SourceKind, u64)>) {
        self.generation_running.clear();
        for (source, number) in running {
            let label = SourceLabel { source: source.as_str() };
            self.generation_running.get_or_create(&label).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Records which signed bundle the node has.
    pub fn set_bundle(&self, name: &str, serial: u64) {
        self.bundle_serial.clear();
        // Prometheus has no other numbers; serials of seconds and builds are exact.
        self.bundle_serial.get_or_create(&BundleLabel { bundle: name.to_owned() }).set(serial as f64);
    }

    /// Records when the pods last began to end for a shutdown, and when they had ended.
    pub fn set_shutdown_times(&self, start: Option<Timestamp>, end: Option<Timestamp>) {
        let seconds = |at: Option<Timestamp>| at.map_or(0.0, |at| at.as_duration().as_secs_f64());
        self.shutdown_start.set(seconds(start));
        self.shutdown_end.set(seconds(end));
    }

    /// Counts a container's probe.
    pub fn probed(&self, pod: &PodRecord, container: &str, kind: ProbeKind, result: ProbeResult) {
        self.probes.count(pod, container, kind, result);
    }

    /// Removes the probe counts of a deleted pod.
    pub fn forget_probes(&self, pod: &PodRecord) {
        self.probes.forget(pod);
    }

    /// Records a call to containerd that returned after `took`.
    pub fn runtime_operation(&self, operation: &'static str, took: Duration, succeeded: bool) {
        let label = OperationLabel { operation_type: operation };
        self.operations.get_or_create(&label).inc();
        self.operation_seconds.get_or_create(&label).observe(took.as_secs_f64());
        if !succeeded {
            self.operation_errors.get_or_create(&label).inc();
        }
    }

    /// Records that a pod's cgroup was created, changed or removed: `create`, `update`, `destroy`.
    pub fn cgroup_operation(&self, operation: &'static str, took: Duration) {
        self.cgroup_seconds.get_or_create(&OperationLabel { operation_type: operation }).observe(took.as_secs_f64());
    }

    /// Records a mount by this CSI driver, successful or not.
    pub fn volume_mounted(&self, driver: &str, took: Duration, succeeded: bool) {
        self.volumes.mounted(driver, took, succeeded);
    }

    /// Records whether containerd's event stream is open.
    pub fn set_containerd_connected(&self, connected: bool) {
        self.containerd_connected.set(i64::from(connected));
    }

    /// The metrics of a node in a cluster.
    pub fn apiserver(&self) -> &ApiserverMetrics {
        &self.apiserver
    }

    /// Counts a change that the merge passed on.
    pub fn merge_change(&self, change: MergeChange) {
        self.merge_changes.get_or_create(&ChangeLabel { change }).inc();
    }

    /// Records the duration of a merge with changes.
    pub fn merged(&self, took: Duration) {
        self.merge_seconds.observe(took.as_secs_f64());
    }

    /// Counts the `count` new faults of a rejected manifest.
    pub fn manifest_rejected(&self, source: SourceKind, reason: RejectionReason, count: usize) {
        self.manifest_rejected.get_or_create(&RejectionLabels { source: source.as_str(), reason }).inc_by(count as u64);
    }

    /// Records the active backend that attributes manifest changes, and the backend that failed, if any.
    pub fn manifest_watch(&self, backend: &'static str, lost: Option<&'static str>) {
        self.manifest_watch.clear();
        self.manifest_watch.get_or_create(&BackendLabel { backend }).set(1);
        if let Some(backend) = lost {
            self.manifest_watch_lost.get_or_create(&BackendLabel { backend }).inc();
        }
    }

    /// Counts a change in the manifest directory by a pod's process; `None` if the pod is unknown.
    pub fn manifest_written_by_pod(&self, pod: Option<&str>, container: Option<&str>) {
        let (namespace, name) = pod.and_then(|pod| pod.split_once('/')).unwrap_or_default();
        let mut labels = WriterLabels {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            container: container.unwrap_or_default().to_owned(),
        };
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        if writers.len() >= MOST_WRITERS && !writers.contains(&labels) {
            let others = || "others".to_owned();
            labels = WriterLabels { namespace: others(), pod: others(), container: others() };
        } else {
            writers.insert(labels.clone());
        }
        drop(writers);
        self.writes_by_pod.get_or_create(&labels).inc();
    }

    /// Counts attempts of a process to change a guarded file.
    pub fn manifest_guarded(&self, verdict: GuardVerdict, attempts: u32) {
        self.guarded.get_or_create(&VerdictLabel { verdict }).inc_by(attempts.into());
    }

    /// Counts an image that garbage collection has removed.
    pub fn image_removed(&self, reason: ImageRemoval) {
        self.images_removed.get_or_create(&RemovalLabel { reason }).inc();
    }

    /// Counts a pod that was evicted because the node was short of a resource.
    pub fn evicted(&self, signal: Signal) {
        self.evictions.get_or_create(&SignalLabel { eviction_signal: signal.as_str() }).inc();
    }

    /// Records whether the node has a condition.
    pub fn node_pressure(&self, condition: Pressure, holds: bool) {
        self.node_pressure.get_or_create(&ConditionLabel { condition: condition.as_str() }).set(i64::from(holds));
    }

    /// Reads the snapshots and renders everything in Prometheus' text format ([`CONTENT_TYPE`]).
    pub fn render<'a>(
        &self,
        pods: &ObservedPods,
        sources: impl IntoIterator<Item = (SourceKind, &'a SourceSnapshot, Option<Timestamp>)>,
    ) -> String {
        self.take_pods(pods);
        self.volumes.take(pods);
        self.take_sources(sources);
        encode(&self.registry)
    }

    /// Replaces the figures that CSI drivers report about claims, by namespace and name.
    pub fn set_claims(&self, claims: impl IntoIterator<Item = ((String, String), ClaimFigures)>) {
        self.claims.set(claims);
    }

    /// Renders only the probe results, in the same format.
    pub fn render_probes(&self) -> String {
        let mut probes = Registry::default();
        self.probes.register(&mut probes);
        encode(&probes)
    }

    fn take_pods(&self, observed: &ObservedPods) {
        let mut running = 0;
        // Counts pods that are not static, and static ones.
        let mut active = [0, 0];
        let mut states = [
            (ContainerState::Created, 0),
            (ContainerState::Running, 0),
            (ContainerState::Exited, 0),
            (ContainerState::Unknown, 0),
        ];
        for pod in observed.pods.values() {
            let status = &pod.status;
            let mut any = false;
            for container in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
                let state = state_of(container);
                any |= state == Some(ContainerState::Running);
                if let Some((_, count)) = states.iter_mut().find(|(each, _)| Some(*each) == state) {
                    *count += 1;
                }
            }
            running += i64::from(any);
            if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
                active[usize::from(pod.record.source.traits().is_mirrored)] += 1;
            }
        }
        self.running_pods.set(running);
        for (r#static, count) in [Static::No, Static::Yes].into_iter().zip(active) {
            self.active_pods.get_or_create(&StaticLabel { r#static }).set(count);
        }
        for (container_state, count) in states {
            self.running_containers.get_or_create(&StateLabel { container_state }).set(count);
        }
    }

    fn take_sources<'a>(&self, sources: impl IntoIterator<Item = (SourceKind, &'a SourceSnapshot, Option<Timestamp>)>) {
        let (mut of_node, mut of_apiserver, mut rejected) = (0, 0, 0);
        for (kind, snapshot, last_success) in sources {
            let pods = i64::try_from(snapshot.pods.len()).unwrap_or(i64::MAX);
            match kind.traits().is_mirrored {
                true => of_node += pods,
                false => of_apiserver += pods,
            }
            rejected += i64::try_from(snapshot.rejected.len()).unwrap_or(i64::MAX);
            let label = SourceLabel { source: kind.as_str() };
            self.source_healthy.get_or_create(&label).set(i64::from(snapshot.health.reads()));
            if let Some(at) = last_success {
                self.source_success.get_or_create(&label).set(at.as_duration().as_secs_f64());
            }
        }
        self.desired_pods.get_or_create(&StaticLabel { r#static: Static::Yes }).set(of_node);
        self.desired_pods.get_or_create(&StaticLabel { r#static: Static::No }).set(of_apiserver);
        self.rejected.set(rejected);
    }
}

fn encode(registry: &Registry) -> String {
    let mut page = String::new();
    match text::encode(&mut page, registry) {
        Ok(()) => text_format::from_open_metrics(&page),
        // Writing to a `String` cannot fail. If an encoder rejects a value, no parser takes this text for a complete
        // page.
        Err(_) => "a metric could not be encoded\n".to_owned(),
    }
}

/// The state of an existing container; `None` before it was created.
fn state_of(container: &ContainerStatus) -> Option<ContainerState> {
    let state = container.state.as_ref()?;
    if state.running.is_some() {
        return Some(ContainerState::Running);
    }
    if let Some(ended) = &state.terminated {
        let unseen = ended.reason.as_deref() == Some("ContainerStatusUnknown");
        return Some(if unseen { ContainerState::Unknown } else { ContainerState::Exited });
    }
    // A waiting container has exited before, or was created and not started, or does not exist.
    if container.last_state.as_ref().is_some_and(|last| last.terminated.is_some()) {
        return Some(ContainerState::Exited);
    }
    container.container_id.as_ref().map(|_| ContainerState::Created)
}

/// A counter of seconds for the process collector.
type Seconds = prometheus_client::metrics::counter::ConstCounter<f64>;

/// A gauge that is read at the scrape.
type Reading = prometheus_client::metrics::gauge::ConstGauge<f64>;

#[cfg(test)]
mod tests;
