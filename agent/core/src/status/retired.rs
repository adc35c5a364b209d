//! The last statuses of pods that are gone, for the consumers that have not taken them yet. Pure and bounded.
//!
//! A consumer that is registered when a pod is removed acknowledges it by its version, and the last acknowledgement
//! removes it. A consumer that leaves acknowledges everything. Without consumers nothing is kept.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::observed_pod::ObservedPod;
use limpet_model::pod::PodUid;

/// How many statuses are kept; the oldest makes room for a newer one.
pub const MAX_RETIRED: usize = 128;

/// One registration of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(u64);

/// The last status of one pod.
#[derive(Debug, Clone)]
pub struct RetiredPod {
    /// The pod in its last state.
    pub pod: Arc<ObservedPod>,
    awaited: OrdSet<ConsumerId>,
}

/// The statuses that are still awaited, and by whom. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Retired {
    /// By version, the oldest first.
    pods: OrdMap<u64, RetiredPod>,
    consumers: OrdMap<ConsumerId, &'static str>,
    next_version: u64,
    next_consumer: u64,
}

/// A status that was dropped before every consumer had acknowledged it.
#[derive(Debug, Clone)]
pub struct DroppedStatus {
    pub pod: Arc<ObservedPod>,
    /// The names of the consumers that had not acknowledged it.
    pub consumers: Vec<&'static str>,
}

impl Retired {
    /// Registers a consumer under a name for people. It must acknowledge what is retired from now on.
    pub fn register(&mut self, name: &'static str) -> ConsumerId {
        let id = ConsumerId(self.next_consumer);
        self.next_consumer += 1;
        self.consumers.insert(id, name);
        id
    }

    /// Removes a consumer, for which nothing is kept any more.
    pub fn leave(&mut self, id: ConsumerId) {
        if self.consumers.remove(&id).is_some() {
            let versions: Vec<u64> = self.awaited_by(id).map(|(version, _)| version).collect();
            versions.into_iter().for_each(|version| self.acknowledge(id, version));
        }
    }

    /// Keeps the last status of a pod for every consumer. Returns what had to make room for it.
    pub fn retire(&mut self, pod: Arc<ObservedPod>) -> Option<DroppedStatus> {
        let awaited: OrdSet<ConsumerId> = self.consumers.keys().copied().collect();
        if awaited.is_empty() {
            return None;
        }
        self.pods.insert(self.next_version, RetiredPod { pod, awaited });
        self.next_version += 1;
        if self.pods.len() <= MAX_RETIRED {
            return None;
        }
        let oldest = *self.pods.get_min().map(|(version, _)| version)?;
        let RetiredPod { pod, awaited } = self.pods.remove(&oldest)?;
        let consumers = awaited.iter().filter_map(|id| self.consumers.get(id).copied()).collect();
        Some(DroppedStatus { pod, consumers })
    }

    /// Records that the consumer has taken that version. The last one to do so removes it.
    pub fn acknowledge(&mut self, id: ConsumerId, version: u64) {
        let Some(retired) = self.pods.get_mut(&version) else { return };
        retired.awaited.remove(&id);
        if retired.awaited.is_empty() {
            self.pods.remove(&version);
        }
    }

    /// What the consumer has not taken yet, by version, the oldest first.
    pub fn awaited_by(&self, id: ConsumerId) -> impl Iterator<Item = (u64, &Arc<ObservedPod>)> {
        self.pods
            .iter()
            .filter(move |(_, retired)| retired.awaited.contains(&id))
            .map(|(version, retired)| (*version, &retired.pod))
    }

    /// Whether the status of a pod of that UID is kept.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.pods.values().any(|retired| retired.pod.record.uid == *uid)
    }

    /// How many consumers are registered.
    pub fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// How many statuses are kept.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

#[cfg(test)]
mod tests;
