//! Eviction under node pressure, as kubelet decides it: what the node is short of, since when, and when pods have to
//! end for it. Pure: measurements and time are arguments.
//!
//! [`ThresholdTracker`] turns measurements into conditions and into the threshold to act on. [`rank`] chooses the pod
//! that ends for it, and [`recovery`] decides when it runs again. [`crate::admission`] decides which pods do not start
//! meanwhile.

pub mod alarm_pace;
pub mod rank;
pub mod recovery;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::node_state::NodePressure;
use limpet_model::node::Pressure;

/// The shortest and the longest interval between two measurements. The shortest is kubelet's period.
pub const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// By which factor a resource may be used up faster once the kernel has reported heavy use.
const BUSY_SPEEDUP: u64 = 20;
/// The shortest interval in that case: the kernel's own interval of reports.
const MIN_BUSY_INTERVAL: Duration = Duration::from_secs(2);

/// What is measured, in the order in which kubelet reclaims, memory first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    /// `allocatableMemory.available`: what is left of the memory that all pods may use together.
    AllocatableMemoryAvailable,
    /// `nodefs.available`: free bytes of the disk with the agent's root directory.
    NodefsAvailable,
    /// `nodefs.inodesFree`.
    NodefsInodesFree,
    /// `imagefs.available`: free bytes of the disk with images and the writable layers of containers.
    ImagefsAvailable,
    /// `imagefs.inodesFree`.
    ImagefsInodesFree,
    PidAvailable,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// kubelet's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// The condition of the node if there is too little of it.
    pub fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// The resource that is reclaimed, as kubelet's messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// How much of it may be used up in a second, from which the time until a threshold is met follows.
    fn speed(self) -> u64 {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => 100 << 20,
            Self::NodefsAvailable | Self::ImagefsAvailable => 50 << 20,
            Self::NodefsInodesFree | Self::ImagefsInodesFree => 5_000,
            Self::PidAvailable => 500,
        }
    }
}

/// A quantity, or a share of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or process ids.
    Absolute(u64),
    /// Between 0 and 1.
    Share(f32),
}

impl Amount {
    /// The quantity, given the `capacity`.
    pub fn resolve(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Share(share) => (capacity as f64 * f64::from(share)) as u64,
        }
    }
}

/// A threshold of `evictionHard` or `evictionSoft`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// What it is about.
    pub signal: Signal,
    /// It is met if less than this is available.
    pub value: Amount,
    /// How long it has to be met before pods end; zero for a hard threshold.
    pub grace: Duration,
    /// How much more than `value` must be available before the shortage is over, once pods had to end for it.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods end at once for it.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// How much more must become available, once pods had to end for it.
    pub fn missing(&self, seen: &Observation) -> u64 {
        self.least(seen, true).saturating_sub(seen.available)
    }

    /// What is available above it; `None` if that was not measured.
    fn left(&self, seen: &Observations) -> Option<u64> {
        let seen = seen.get(&self.signal)?;
        Some(seen.available.saturating_sub(self.value.resolve(seen.capacity)))
    }

    fn is_met(&self, seen: &Observation, reclaims: bool) -> bool {
        seen.available < self.least(seen, reclaims)
    }

    fn least(&self, seen: &Observation, reclaims: bool) -> u64 {
        let more = self.min_reclaim.filter(|_| reclaims).map_or(0, |more| more.resolve(seen.capacity));
        self.value.resolve(seen.capacity).saturating_add(more)
    }
}

/// kubelet's settings of eviction.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionPolicy {
    /// `evictionHard`, `evictionSoft` with `evictionSoftGracePeriod`, `evictionMinimumReclaim`.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition stays after a threshold was last met.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`: the longest grace period of pods that end for a soft threshold.
    pub max_pod_grace: Duration,
}

/// kubelet's hard thresholds if `evictionHard` specifies none.
pub const DEFAULT_HARD: [(Signal, Amount); 5] = [
    (Signal::MemoryAvailable, Amount::Absolute(100 << 20)),
    (Signal::NodefsAvailable, Amount::Share(0.1)),
    (Signal::NodefsInodesFree, Amount::Share(0.05)),
    (Signal::ImagefsAvailable, Amount::Share(0.15)),
    (Signal::ImagefsInodesFree, Amount::Share(0.05)),
];

impl Default for EvictionPolicy {
    fn default() -> Self {
        let hard = |(signal, value)| Threshold { signal, value, grace: Duration::ZERO, min_reclaim: None };
        Self {
            thresholds: DEFAULT_HARD.into_iter().map(hard).collect(),
            transition: Duration::from_secs(300),
            max_pod_grace: Duration::ZERO,
        }
    }
}

impl EvictionPolicy {
    /// Whether a threshold is about this pressure.
    pub fn watches(&self, pressure: Pressure) -> bool {
        self.thresholds.iter().any(|threshold| threshold.signal.pressure() == pressure)
    }

    /// The same if the memory of all pods together is limited: a hard threshold for memory then also applies to that
    /// limit.
    pub fn with_allocatable_memory(mut self) -> Self {
        let hard =
            self.thresholds.iter().find(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard());
        let of_pods = hard.map(|hard| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*hard });
        self.thresholds.extend(of_pods);
        self.thresholds.sort_by_key(|threshold| threshold.signal);
        self
    }

    /// The grace period of an evicted pod in seconds. kubelet's is never less than one.
    pub fn pod_grace(&self, threshold: &Threshold, pod_grace: u64) -> u64 {
        if threshold.is_hard() { 1 } else { self.max_pod_grace.as_secs().min(pod_grace).max(1) }
    }

    /// Whether more must be reclaimed, because a threshold is met or its `evictionMinimumReclaim` is not reached.
    pub fn needs_more(&self, seen: &Observations) -> bool {
        self.thresholds
            .iter()
            .any(|threshold| seen.get(&threshold.signal).is_some_and(|seen| threshold.is_met(seen, true)))
    }

    /// The signals of the thresholds that are met, including their minimum reclaim.
    pub fn met(&self, seen: &Observations) -> impl Iterator<Item = Signal> {
        let is_met =
            |threshold: &&Threshold| seen.get(&threshold.signal).is_some_and(|seen| threshold.is_met(seen, false));
        self.thresholds.iter().filter(is_met).map(|threshold| threshold.signal)
    }

    /// How long to wait for the next measurement if nothing happens: until shortly before what is available above a
    /// threshold can be used up, within [`CHECK_INTERVALS`]. Nothing in the kernel reports that memory falls below a
    /// threshold, so memory is measured at intervals as well.
    pub fn pause(&self, seen: &Observations) -> Duration {
        self.lasts(seen, 1, |_| true).clamp(CHECK_INTERVALS.0, CHECK_INTERVALS.1)
    }

    /// The same once the kernel has reported heavy use: of a disk a GiB each second, of memory two.
    pub fn pause_of_busy(&self, pressure: Pressure, seen: &Observations) -> Duration {
        let is_of_it = |signal: Signal| signal.pressure() == pressure;
        self.lasts(seen, BUSY_SPEEDUP, is_of_it).clamp(MIN_BUSY_INTERVAL, CHECK_INTERVALS.1)
    }

    /// The bytes of memory that are available above the first threshold; `None` if no threshold is configured.
    pub fn memory_left(&self, seen: &Observations) -> Option<u64> {
        let of_memory = self.thresholds.iter().filter(|threshold| threshold.signal.pressure() == Pressure::Memory);
        of_memory.filter_map(|threshold| threshold.left(seen)).min()
    }

    /// How long what is available above the thresholds of the signals lasts, if it is used up `factor` times as fast
    /// as usual.
    fn lasts(&self, seen: &Observations, factor: u64, counts: impl Fn(Signal) -> bool) -> Duration {
        let lasts = |threshold: &Threshold| {
            Some(Duration::from_secs(threshold.left(seen)? / (threshold.signal.speed() * factor)))
        };
        let counted = self.thresholds.iter().filter(|threshold| counts(threshold.signal));
        counted.filter_map(lasts).min().unwrap_or(CHECK_INTERVALS.1)
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Observation {
    /// How much is available.
    pub available: u64,
    /// How much there is in total.
    pub capacity: u64,
}

/// The measurements at one moment. A signal that could not be measured is left out, and meets no threshold.
pub type Observations = BTreeMap<Signal, Observation>;

/// What follows from a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// The node's conditions.
    pub pressure: NodePressure,
    /// The threshold for which something has to be reclaimed now.
    pub starved: Option<Threshold>,
    /// When the same measurement would lead to another result.
    pub next: Option<Instant>,
}

/// Remembers since when thresholds are met.
#[derive(Debug, Clone, Default)]
pub struct ThresholdTracker {
    /// By the threshold's index in the policy.
    met_since: BTreeMap<usize, Instant>,
    /// The thresholds whose grace period had passed at the last measurement.
    acted_on: Vec<usize>,
    last_met: BTreeMap<Pressure, Instant>,
}

impl ThresholdTracker {
    /// Evaluates a measurement.
    pub fn observe(&mut self, policy: &EvictionPolicy, seen: &Observations, now: Instant) -> Assessment {
        let met = |(index, threshold): &(usize, &Threshold)| {
            let reclaims = self.acted_on.contains(index);
            seen.get(&threshold.signal).is_some_and(|seen| threshold.is_met(seen, reclaims))
        };
        let met: Vec<(usize, &Threshold)> = policy.thresholds.iter().enumerate().filter(met).collect();
        self.met_since = met.iter().map(|(index, _)| (*index, *self.met_since.get(index).unwrap_or(&now))).collect();
        for (_, threshold) in &met {
            self.last_met.insert(threshold.signal.pressure(), now);
        }
        let met_now = |pressure: &Pressure| met.iter().any(|(_, threshold)| threshold.signal.pressure() == *pressure);
        // A condition that is met holds with any transition period; kubelet's does not if that is zero.
        self.last_met.retain(|pressure, last| met_now(pressure) || now.duration_since(*last) < policy.transition);
        let since = |index: &usize| now.duration_since(self.met_since[index]);
        let (acting, waiting): (Vec<_>, Vec<_>) =
            met.iter().partition(|(index, threshold)| since(index) >= threshold.grace);
        self.acted_on = acting.iter().map(|(index, _)| *index).collect();

        let graces = waiting.iter().map(|(index, threshold)| self.met_since[index] + threshold.grace);
        let ends = self.last_met.iter().filter(|(pressure, _)| !met_now(pressure));
        let ends = ends.map(|(_, last)| *last + policy.transition);
        Assessment {
            pressure: self.last_met.keys().copied().collect(),
            starved: acting
                .iter()
                .map(|(_, threshold)| **threshold)
                .min_by_key(|threshold| (threshold.signal, !threshold.is_hard())),
            next: graces.chain(ends).min(),
        }
    }
}

#[cfg(test)]
mod tests;
