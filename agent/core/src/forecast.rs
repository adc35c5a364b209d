//! Predicts what other manifests would change: which pods start, stop, are recreated or keep running, and which of
//! their containers restart.
//!
//! It reuses the agent's own logic: the sources' view decides what is accepted, the merge which pods run, and the
//! worker's plan which containers restart. Pure.

mod objects;
pub mod replacement;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, PodStatus,
};

use crate::forecast::replacement::{Replacement, replacement};
use crate::merge::table::MergeTable;
use crate::merge::{DesiredPods, Duplicate};
use crate::source::{Snapshots, SourceSnapshot};
use crate::status::observed::{ObservedPod, ObservedPods};
use limpet_model::pod::huge_pages::requests;
use limpet_model::pod::replaceable::obstacles;
use limpet_model::pod::{Edit, PodDiff, PodKey, PodRecord, edits};
use limpet_model::source::SourceKind;
pub use objects::{ObjectForecast, ValueChange};

/// The effect on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Starts,
    /// It is updated in place. The containers that restart or are resized are listed, possibly none.
    InPlace(Replacement),
    /// It is terminated and a new one starts.
    Recreates {
        /// What cannot change in place, as phrases.
        why: Vec<String>,
        /// The termination grace period of the old pod.
        grace: Duration,
    },
    /// It is terminated.
    Stops {
        /// Its termination grace period.
        grace: Duration,
    },
    /// It does not run: another pod takes precedence.
    Loses,
}

#[derive(Debug, Clone)]
pub struct PodForecast {
    /// The running version; `None`: none runs.
    pub old: Option<Arc<PodRecord>>,
    /// The version that would run; `None`: none would.
    pub new: Option<Arc<PodRecord>>,
    /// The fields that differ.
    pub edits: Vec<Edit>,
    pub effect: Effect,
    /// Other claims to its name or its UID, as sentences.
    pub remarks: Vec<String>,
}

impl PodForecast {
    /// The version that identifies it.
    pub fn record(&self) -> Option<&Arc<PodRecord>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// All predicted changes.
#[derive(Debug, Clone, Default)]
pub struct Forecast {
    /// Pods, by key.
    pub pods: Vec<PodForecast>,
    /// ConfigMaps and Secrets, by source and key.
    pub objects: Vec<ObjectForecast>,
}

/// Compares what runs with what would run if the sources published `after` instead of `before`. `all` includes
/// changes that are already in progress.
pub fn forecast(observed: &ObservedPods, before: &Snapshots, after: &Snapshots, all: bool, now: Instant) -> Forecast {
    let mut table = MergeTable::default();
    table.absorb(before.clone());
    let was = table.desired().clone();
    let outcome = table.absorb(after.clone());
    let will = table.desired();
    let mut keys: BTreeSet<PodKey> = outcome.contested.into_iter().collect();
    keys.extend(outcome.changes.iter().map(|change| change.record().key.clone()));
    if all {
        keys.extend(observed.pods.keys().cloned());
        keys.extend(will.pods.keys().cloned());
    }
    let pods = keys.iter().filter_map(|key| one_pod(key, observed.pods.get(key), &was, will, now));
    Forecast { pods: pods.collect(), objects: objects::changes(before, after, will) }
}

fn one_pod(
    key: &PodKey,
    observed: Option<&Arc<ObservedPod>>,
    was: &DesiredPods,
    will: &DesiredPods,
    now: Instant,
) -> Option<PodForecast> {
    let new = will.pods.get(key).cloned();
    let old = observed.map(|pod| Arc::clone(&pod.record));
    let remarks = new_claims(key, was, will);
    let (effect, edits) = match (observed, &new) {
        (Some(observed), Some(new)) if new.is_deleting() => {
            (Effect::Stops { grace: grace(new) }, edits(&observed.record, new))
        }
        (Some(observed), Some(new)) => (change(observed, new, now), edits(&observed.record, new)),
        (Some(observed), None) => (Effect::Stops { grace: grace(&observed.record) }, Vec::new()),
        (None, Some(new)) if new.is_deleting() => return None,
        (None, Some(_)) => (Effect::Starts, Vec::new()),
        (None, None) if remarks.is_empty() => return None,
        (None, None) => (Effect::Loses, Vec::new()),
    };
    // A renamed file, or a container that would restart anyway, is not a change.
    let unchanged = matches!(effect, Effect::InPlace(_)) && edits.is_empty() && remarks.is_empty();
    let already_terminating =
        matches!(effect, Effect::Stops { .. }) && observed.is_some_and(|pod| pod.terminating_since.is_some());
    (!unchanged && !already_terminating).then_some(PodForecast { old, new, edits, effect, remarks })
}

fn change(observed: &ObservedPod, new: &Arc<PodRecord>, now: Instant) -> Effect {
    let old = &observed.record;
    let why = match PodDiff::between(old, new).needs_new_pod() {
        true => reasons(old, new),
        false => match replacement(observed, Arc::clone(new), now) {
            Ok(replacement) => return Effect::InPlace(replacement),
            Err(cause) => vec![cause.to_string()],
        },
    };
    Effect::Recreates { why, grace: grace(old) }
}

/// The parts of an edit that cannot change in place.
fn reasons(old: &PodRecord, new: &PodRecord) -> Vec<String> {
    let edits = edits(old, new);
    let fields: BTreeSet<&str> = edits.iter().filter(|edit| !edit.in_place).map(|edit| edit.field.as_str()).collect();
    let fields: Vec<&str> = fields.into_iter().collect();
    let mut reasons = Vec::new();
    if !fields.is_empty() {
        reasons.push(format!("{} cannot change in place", fields.join(", ")));
    }
    let (before, after) = (old.qos_class, new.qos_class);
    if before != after {
        reasons.push(format!("its QoS class changes from {before} to {after}"));
    }
    if requests(old.spec()) != requests(new.spec()) {
        reasons.push("its huge pages change".to_owned());
    }
    reasons.extend(obstacles(old, new).iter().map(ToString::to_string));
    if old.source != new.source {
        reasons.push(format!("from {} to {}", old.source, new.source));
    }
    reasons
}

fn grace(record: &PodRecord) -> Duration {
    let asked = record.pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(asked.map_or_else(|| record.grace_seconds(), |seconds| seconds.max(1)))
}

/// New claims to the pod's name or UID, as messages for this pod.
fn new_claims(key: &PodKey, was: &DesiredPods, will: &DesiredPods) -> Vec<String> {
    let messages = |desired: &DesiredPods| -> Vec<String> {
        let duplicates = desired.duplicates.get(key).into_iter().flat_map(|duplicates| duplicates.iter());
        let message = |duplicate: &Duplicate| match duplicate.winner.key == *key {
            true => duplicate.winner_message(),
            false => duplicate.loser_message(),
        };
        duplicates.map(message).collect()
    };
    let before = messages(was);
    messages(will).into_iter().filter(|claim| !before.contains(claim)).collect()
}

/// The images that the starting containers need: by container, with its pull policy.
pub fn images(pod: &PodForecast) -> BTreeMap<String, (String, Option<String>)> {
    let Some(new) = &pod.new else { return BTreeMap::new() };
    let starts = |name: &str| match &pod.effect {
        Effect::Starts | Effect::Recreates { .. } => true,
        Effect::InPlace(Replacement { restarts, .. }) => restarts.iter().any(|restarted| restarted == name),
        Effect::Stops { .. } | Effect::Loses => false,
    };
    let spec = new.spec();
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers
        .filter(|container| starts(&container.name))
        .filter_map(|container| {
            Some((container.name.clone(), (container.image.clone()?, container.image_pull_policy.clone())))
        })
        .collect()
}

/// The observed state if everything the sources publish ran, to compare two sets of manifests without a node.
pub fn as_if_running(snapshots: &Snapshots) -> ObservedPods {
    let mut table = MergeTable::default();
    table.absorb(snapshots.clone());
    let run = |(key, record): (&PodKey, &Arc<PodRecord>)| (key.clone(), Arc::new(running(record)));
    ObservedPods::new(table.desired().pods.iter().map(run).collect())
}

/// The pod with its init containers completed and all others, sidecars included, running.
fn running(record: &Arc<PodRecord>) -> ObservedPod {
    let container = |container: &Container, state: ContainerState| ContainerStatus {
        name: container.name.clone(),
        state: Some(state),
        ..ContainerStatus::default()
    };
    let runs = || ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    let done = || ContainerState { terminated: Some(ContainerStateTerminated::default()), ..ContainerState::default() };
    let spec = record.spec();
    let is_sidecar = |init: &Container| init.restart_policy.as_deref() == Some("Always");
    let life = |init: &Container| if is_sidecar(init) { runs() } else { done() };
    let inits = spec.init_containers.iter().flatten().map(|init| container(init, life(init)));
    let status = PodStatus {
        init_container_statuses: Some(inits.collect()),
        container_statuses: Some(spec.containers.iter().map(|main| container(main, runs())).collect()),
        ..PodStatus::default()
    };
    ObservedPod {
        record: Arc::clone(record),
        allocated: None,
        static_cpus: false,
        status,
        note: None,
        terminating_since: None,
        containers: BTreeMap::new(),
    }
}

/// The snapshots of a node whose only source is `source`.
pub fn only(source: SourceKind, snapshot: Arc<SourceSnapshot>) -> Snapshots {
    let mut snapshots = Snapshots::default();
    snapshots[source.index()] = snapshot;
    snapshots
}

#[cfg(test)]
mod tests;
