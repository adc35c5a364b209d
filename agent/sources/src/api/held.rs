//! Pods that are missing from an apiserver with another history. They were not deleted, so they keep running until
//! the operator accepts the cluster as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use limpet_core::cluster_history::{ClusterHistory, HistoryBreak, Renewal};
use limpet_model::pod::PodKey;

/// What of it is kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct SavedHistory {
    known: ClusterHistory,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    broken: Option<HistoryBreak>,
    /// The last renewal of the node's lease that the apiserver has confirmed, as in the lease. The one on disk may be
    /// older.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    renewal: String,
    /// The version of the lease after it.
    #[serde(default, skip_serializing_if = "is_zero")]
    renewal_version: u64,
}

/// Whether a version is unknown.
fn is_zero(version: &u64) -> bool {
    *version == 0
}

/// The history of the cluster that the pods belong to, and those that the current apiserver does not have.
#[derive(Debug, Default)]
pub(super) struct HeldPods {
    kept: SavedHistory,
    /// The history after the last list and what followed it.
    current: ClusterHistory,
    /// Whether only the lease shows that the history breaks; the next list shows how.
    is_suspected: bool,
    /// Each with the apiserver's Pod of the same name, if there is one.
    pods: BTreeMap<PodKey, Option<Value>>,
}

impl HeldPods {
    /// What [`HeldPods::mark`] has returned in an earlier run.
    pub(super) fn restore(mark: &str) -> Self {
        let kept = serde_json::from_str(mark).unwrap_or_else(|error| {
            tracing::warn!(%error, "the saved state of the cluster cannot be read");
            SavedHistory::default()
        });
        Self { kept, ..Self::default() }
    }

    /// What is to be kept on disk.
    pub(super) fn mark(&self) -> String {
        serde_json::to_string(&self.kept).unwrap_or_default()
    }

    /// Takes a list with that history. `lost` are the pods that it lacks, each with its successor; `knows_pods`: it
    /// has others that were known. Holds `lost` if that history breaks with the one before.
    pub(super) fn listed(&mut self, history: ClusterHistory, lost: BTreeMap<PodKey, Option<Value>>, knows_pods: bool) {
        let new_break = self.kept.known.break_with(&history, knows_pods);
        let broken = match self.kept.broken.take() {
            // The earlier cluster is back.
            Some(HistoryBreak::Replaced) if new_break.is_none() && self.kept.known.shares_authority(&history) => None,
            Some(HistoryBreak::Recreated) if self.kept.known.has_same_service(&history) => None,
            // Another cluster's lease is also older.
            Some(suspected) if std::mem::take(&mut self.is_suspected) => Some(new_break.unwrap_or(suspected)),
            broken => broken.or(new_break),
        };
        (self.current, self.is_suspected) = (history, false);
        // A cluster that has everything is as good as the one before.
        let Some(broken) = broken.filter(|_| !lost.is_empty()) else {
            self.accept();
            return;
        };
        if self.pods.keys().ne(lost.keys()) {
            let pods: Vec<String> = lost.keys().map(ToString::to_string).collect();
            let pods = pods.join(", ");
            tracing::warn!(reason = %broken, pods, "pods that the apiserver does not have keep running; to end them: limpet cluster accept");
        }
        (self.kept.broken, self.pods) = (Some(broken), lost);
    }

    /// The apiserver has come to that version.
    pub(super) fn reached(&mut self, version: &str) {
        self.current.saw(version);
        if self.kept.broken.is_none() {
            self.kept.known.saw(version);
        }
    }

    /// Records that the cluster has gone back: what the next list lacks was not deleted.
    pub(super) fn went_back(&mut self, broken: HistoryBreak) {
        if self.kept.broken.is_none() {
            (self.kept.broken, self.is_suspected) = (Some(broken), true);
        }
    }

    /// The apiserver has confirmed a renewal of the node's lease.
    pub(super) fn renewed(&mut self, renewal: Renewal) {
        (self.kept.renewal, self.kept.renewal_version) = (renewal.time, renewal.version);
    }

    /// The renewal of the lease that the apiserver has confirmed last, also before this start of the agent.
    pub(super) fn last_renewal(&self) -> Renewal {
        Renewal { time: self.kept.renewal.clone(), version: self.kept.renewal_version }
    }

    /// Whether the pod of that key is held.
    pub(super) fn holds(&self, key: &PodKey) -> bool {
        self.pods.contains_key(key)
    }

    /// Sets the apiserver's Pod with the key of a held one; `None` if there is no longer one.
    pub(super) fn set_successor(&mut self, key: &PodKey, pod: Option<Value>) {
        if let Some(successor) = self.pods.get_mut(key) {
            *successor = pod;
        }
    }

    /// Releases the pod of that key, which has to end after all. Returns whether it was held.
    pub(super) fn release(&mut self, key: &PodKey) -> bool {
        self.pods.remove(key).is_some()
    }

    /// Accepts the cluster as it is. Returns the pods that were held, each with its successor.
    pub(super) fn accept(&mut self) -> BTreeMap<PodKey, Option<Value>> {
        let mut known = self.current.clone();
        if known.authorities.is_empty() {
            // The connection was lost before they were requested.
            known.authorities = std::mem::take(&mut self.kept.known.authorities);
        }
        if known.service_uid.is_empty() {
            known.service_uid = std::mem::take(&mut self.kept.known.service_uid);
        }
        (self.kept.known, self.kept.broken) = (known, None);
        std::mem::take(&mut self.pods)
    }

    /// Why pods are held, and which, for users; `None` if none are.
    pub(super) fn reason(&self) -> Option<String> {
        let broken = self.kept.broken.as_ref().filter(|_| !self.pods.is_empty())?;
        let pods: Vec<String> = self.pods.keys().map(ToString::to_string).collect();
        Some(format!("{broken}; it does not have {}, which run on: limpet cluster accept ends them", pods.join(", ")))
    }
}
