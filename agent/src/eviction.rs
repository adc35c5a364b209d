//! Eviction under node pressure: measures what is left on the node, publishes its conditions, and has images removed
//! and pods ended, one at a time, as [`limpet_core::eviction`] decides.
//!
//! It sleeps while nothing runs. Otherwise it measures again before what was left can have been used up. A process
//! that uses it up faster is reported by the kernel: processes wait for memory or a disk, or all pods together have
//! used up the memory that was left. While such reports find nothing changed, they lead to fewer measurements.

pub mod alarm;
pub mod meter;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::executor::containerd::ContainerdExecutor;
use crate::image_gc;
use alarm::Alarm;
use limpet_core::eviction::alarm_pace::AlarmPace;
use limpet_core::eviction::{CHECK_INTERVALS, EvictionPolicy, Signal, Threshold, ThresholdTracker, rank};
use limpet_core::known_pods::KnownPods;
use limpet_core::node_state::NodePressure;
use limpet_core::status::observed::ObservedPod;
use limpet_host::cgroup::MemoryAlarm;
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::node::Pressure;
use limpet_model::verdict::{EVICTED, Eviction, PodVerdict};
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::Metrics;
use limpet_worker::inbox::EvictionOrder;
use meter::{Measured, NodeMeter};

/// Events within this time lead to only one measurement.
const MEASURE_DELAY: Duration = Duration::from_secs(1);
/// An attempt that ended no pod is followed by a pause of this many times its duration, within [`CHECK_INTERVALS`].
const FRUITLESS_PAUSE_FACTOR: u32 = 20;
/// How long the end of a pod may take beyond its grace period; kubelet waits as long.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The task that keeps the node from running out of memory, disk and process ids.
#[derive(Debug)]
pub struct Evictor {
    /// When something is short, and what follows.
    pub policy: EvictionPolicy,
    pub meter: NodeMeter,
    /// Knows what pods use.
    pub executor: Arc<ContainerdExecutor>,
    /// The pods whose images are kept.
    pub pods: Arc<KnownPods>,
    /// The channel on which the node's conditions are published.
    pub pressure: watch::Sender<NodePressure>,
    /// The channel to the workers of pods that have to end.
    pub orders: mpsc::Sender<EvictionOrder>,
    pub events: Events,
    pub metrics: Metrics,
}

/// What it remembers between two measurements.
#[derive(Default)]
struct LoopState {
    watch: ThresholdTracker,
    memory_alarm: Alarm,
    disk_alarm: Alarm,
    /// The alarm for the memory of all pods. Each measurement sets it again except one that it has caused, because
    /// page cache at the limit would make it ring without end.
    pods_alarm: Option<MemoryAlarm>,
    alarmed: bool,
    /// For which resources the kernel has reported waiting processes since the last measurement.
    stalls: Stalls,
    /// How long what was left of disks and of memory lasts at least.
    disks_last: Duration,
    memory_lasts: Duration,
    memory_pace: AlarmPace,
    pruned: Option<Instant>,
    /// No pod is chosen before this time.
    fruitless_until: Option<Instant>,
    /// The last reported shortage. A shortage is reported again once something else is short, or nothing was.
    reported: Option<Signal>,
}

/// What processes wait for.
#[derive(Default)]
struct Stalls {
    memory: bool,
    disk: bool,
}

impl Evictor {
    /// Works until the agent stops.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.policy.thresholds.is_empty() {
            self.pressure.send_replace(NodePressure::from_iter([]));
            return;
        }
        let mut memory = LoopState::default();
        if self.policy.watches(Pressure::Memory) {
            memory.memory_alarm = Alarm::open(alarm::MEMORY);
        }
        if self.policy.watches(Pressure::Disk) {
            memory.disk_alarm = Alarm::open(alarm::DISKS);
        }
        let mut changes = self.pods.observed.changes();
        let (mut due, mut last) = (Some(Instant::now() + MEASURE_DELAY), None::<Instant>);
        loop {
            let soon = |pause| last.map_or(Instant::now(), |last| last + pause).max(Instant::now() + MEASURE_DELAY);
            tokio::select! {
                () = stop.cancelled() => return,
                true = changes.next() => {
                    // A container has started or ended; the effect on its resources is seen at the next measurement.
                    due = earlier(due, Some(soon(CHECK_INTERVALS.0)));
                    continue;
                }
                // Processes may wait for hours although there is enough memory and disk space: at the limit of their
                // container, or for a slow disk.
                () = memory.memory_alarm.rings(), if due.is_some() => {
                    note_stall(&mut memory.stalls.memory, Pressure::Memory);
                    due = earlier(due, Some(soon(memory.memory_pace.pause())));
                    continue;
                }
                () = memory.disk_alarm.rings(), if due.is_some() => {
                    note_stall(&mut memory.stalls.disk, Pressure::Disk);
                    due = earlier(due, Some(soon(memory.disks_last)));
                    continue;
                }
                () = rings_if_set(memory.pods_alarm.as_ref()), if due.is_some() => {
                    (memory.pods_alarm, memory.alarmed) = (None, true);
                    tracing::debug!("the pods have used up the available memory");
                    due = earlier(due, Some(soon(memory.memory_lasts)));
                    continue;
                }
                () = sleep_until_or_forever(due) => {}
            }
            last = Some(Instant::now());
            due = tokio::select! {
                () = stop.cancelled() => return,
                next = self.measure_and_act(&mut memory) => next,
            };
        }
    }

    /// Measures and acts. Returns when to measure again if nothing happens.
    async fn measure_and_act(&mut self, memory: &mut LoopState) -> Option<Instant> {
        let measured = self.meter.measure().await;
        memory.disks_last = self.policy.pause_of_busy(Pressure::Disk, &measured.seen);
        memory.memory_lasts = self.policy.pause_of_busy(Pressure::Memory, &measured.seen);
        let stalls = std::mem::take(&mut memory.stalls);
        // Taken here, because this returns early if it ends a pod, and the next call would otherwise not set the
        // alarm.
        let alarmed = std::mem::take(&mut memory.alarmed);
        let left = self.policy.memory_left(&measured.seen);
        memory.memory_pace = memory.memory_pace.after(left, memory.memory_lasts, stalls.memory);
        if measured.seen.contains_key(&Signal::ImagefsAvailable) {
            self.executor.images.note_measurement();
        }
        let finding = memory.watch.observe(&self.policy, &measured.seen, Instant::now().into_std());
        self.publish(finding.pressure);
        let now = Instant::now();
        if finding.starved.is_none() {
            (memory.reported, memory.fruitless_until) = (None, None);
        }
        let due = memory.fruitless_until.is_none_or(|until| until <= now);
        if let Some(threshold) = finding.starved.filter(|_| due) {
            let first = memory.reported.replace(threshold.signal) != Some(threshold.signal);
            if self.reclaim(&threshold, measured.clone(), memory, first).await {
                return Some(Instant::now() + MEASURE_DELAY);
            }
            let pause = (now.elapsed() * FRUITLESS_PAUSE_FACTOR).clamp(CHECK_INTERVALS.0, CHECK_INTERVALS.1);
            memory.fruitless_until = Some(Instant::now() + pause);
        }
        let observed = self.pods.observed.load();
        let short = finding.pressure.iter().next().is_some();
        if !observed.pods.values().any(|pod| runs(pod)) && (observed.pods.is_empty() || !short) {
            memory.pods_alarm = None;
            return None;
        }
        memory.pods_alarm = if alarmed { None } else { self.set_alarm(&measured).await };
        let pause = self.policy.pause(&measured.seen);
        let memory_available = measured.seen.get(&Signal::MemoryAvailable).map(|memory| memory.available);
        tracing::debug!(
            memory_available,
            again_in = ?pause,
            memory_stalled = stalls.memory,
            disk_stalled = stalls.disk,
            "node resources measured"
        );
        earlier(Some(now + pause), finding.next.map(Instant::from_std))
    }

    /// The alarm for the pods' memory, if some threshold is about memory. If no memory is left, it is measured often
    /// anyway.
    async fn set_alarm(&self, measured: &Measured) -> Option<MemoryAlarm> {
        let left = self.policy.memory_left(&measured.seen).filter(|left| *left > 0)?;
        let alarm = self.meter.cgroups.memory_alarm(left).await;
        alarm.inspect_err(|error| tracing::debug!(%error, "cannot register a notification for the pods' memory")).ok()
    }

    /// Publishes the node's conditions, and reports those that changed, in kubelet's words.
    fn publish(&self, pressure: NodePressure) {
        let before = self.pressure.send_replace(pressure);
        if before == pressure {
            return;
        }
        for condition in Pressure::ALL {
            let under = pressure.is_under(condition);
            self.metrics.node_pressure(condition, under);
            if under == before.is_under(condition) {
                continue;
            }
            let (reason, holds) = match (condition, under) {
                (Pressure::Memory, true) => ("NodeHasInsufficientMemory", true),
                (Pressure::Memory, false) => ("NodeHasSufficientMemory", false),
                (Pressure::Disk, true) => ("NodeHasDiskPressure", true),
                (Pressure::Disk, false) => ("NodeHasNoDiskPressure", false),
                (Pressure::Pid, true) => ("NodeHasInsufficientPID", true),
                (Pressure::Pid, false) => ("NodeHasSufficientPID", false),
            };
            tracing::warn!(%condition, holds, "a node condition changed");
            self.events.emit(None, None, EventType::Normal, reason, format!("Node status is now: {reason}"));
        }
    }

    /// Reclaims what the node is short of, by removing images that nothing needs, and if that is not enough, by
    /// ending a pod. Returns whether a pod was ended. `first`: it is the first attempt in this shortage.
    async fn reclaim(
        &mut self,
        threshold: &Threshold,
        mut measured: Measured,
        memory: &mut LoopState,
        first: bool,
    ) -> bool {
        let (signal, resource) = (threshold.signal, threshold.signal.resource());
        if first {
            let seen = measured.seen.get(&signal);
            tracing::warn!(signal = signal.as_str(), ?seen, "attempting to reclaim {resource}");
            let message = format!("Attempting to reclaim {resource}");
            self.events.emit(None, None, EventType::Warning, "EvictionThresholdMet", message);
        }
        let due = memory.pruned.is_none_or(|pruned| pruned.elapsed() >= CHECK_INTERVALS.1);
        if due && measured.images_take(signal) {
            memory.pruned = Some(Instant::now());
            if let Err(error) = image_gc::prune(&self.executor.images, &self.pods).await {
                tracing::warn!(%error, "removing images to free disk space failed");
            }
            measured = self.meter.measure().await;
            if !self.policy.needs_more(&measured.seen) {
                tracing::info!(signal = signal.as_str(), "enough resources reclaimed without evicting a pod");
                return false;
            }
        }
        let running: Vec<Arc<ObservedPod>> =
            self.pods.observed.load().pods.values().filter(|pod| runs(pod)).cloned().collect();
        let candidates = usage::candidates(&self.executor, signal, &measured, &running).await;
        let seen = measured.seen.get(&signal).copied().unwrap_or_default();
        let Some(pod) = rank::order(signal, threshold.missing(&seen), candidates).into_iter().next() else {
            if first {
                tracing::warn!(
                    signal = signal.as_str(),
                    pods = running.len(),
                    "no pod can be evicted to reclaim {resource}"
                );
            }
            return false;
        };
        let grace_seconds = self.policy.pod_grace(threshold, pod.record.grace_seconds());
        let eviction = Eviction { pressure: signal.pressure(), grace_seconds };
        let verdict = PodVerdict::evicted_under_pressure(eviction, rank::message(threshold, seen, &pod));
        let (done, ended) = oneshot::channel();
        let (key, uid) = (pod.record.key.clone(), pod.record.uid.clone());
        if self.orders.send(EvictionOrder { key, uid, verdict, done }).await.is_err() {
            return false;
        }
        match tokio::time::timeout(Duration::from_secs(grace_seconds) + CLEANUP_TIMEOUT, ended).await {
            // The pod ended by itself, or because of another order.
            Ok(Err(_)) => return false,
            Ok(Ok(())) => {}
            Err(_) => tracing::warn!(pod = %pod.record.key, "an evicted pod did not end in time"),
        }
        self.metrics.evicted(signal);
        true
    }
}

/// Whether a container of the pod runs, and the pod is not being ended.
fn runs(pod: &ObservedPod) -> bool {
    let evicted = pod.status.reason.as_deref() == Some(EVICTED);
    !evicted && pod.terminating_since.is_none() && pod.containers.values().any(|container| container.pid.is_some())
}

/// Logged only once between two measurements, because an alarm may ring every two seconds.
fn note_stall(stalled: &mut bool, resource: Pressure) {
    if !std::mem::replace(stalled, true) {
        tracing::debug!(%resource, "the kernel reports processes that wait");
    }
}

fn earlier(first: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    first.into_iter().chain(other).min()
}

async fn rings_if_set(alarm: Option<&MemoryAlarm>) {
    match alarm {
        Some(alarm) => alarm.rings().await,
        None => std::future::pending().await,
    }
}
