//! The observed state of every pod, as one snapshot that readers load without a lock.
//!
//! Pod workers publish, one entry per pod; the local API, the command line and the metrics read. A reader sees
//! one consistent state and never blocks a worker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;

use limpet_model::pod::{PodKey, PodRecord};

/// What the agent knows of one container beyond the fields of the Pod API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedContainer {
    /// The container's id in containerd, without `containerd://`.
    pub id: String,
    /// The pid of its first process, while it runs.
    pub pid: Option<u32>,
    /// The directory that holds its logs: `0.log`, `1.log`, one file per attempt.
    pub log_path: PathBuf,
    /// How often it was restarted; also the number of its newest log.
    pub restart_count: u32,
}

/// One pod: its desired version and its observed state.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedPod {
    /// The accepted version the worker applies.
    pub record: Arc<PodRecord>,
    /// Phase, conditions and container statuses.
    pub status: PodStatus,
    /// A phrase for the NOTE column: `registry unreachable since 40s`.
    pub note: Option<String>,
    /// When its termination began, while it terminates.
    pub terminating_since: Option<Timestamp>,
    /// Every container that has been created, init containers included, by name.
    pub containers: BTreeMap<String, ObservedContainer>,
}

/// Every pod that has a worker, by key.
#[derive(Debug, Clone, Default)]
pub struct ObservedPods {
    /// The pods; cheap to clone.
    pub pods: OrdMap<PodKey, Arc<ObservedPod>>,
}

/// The handle to the newest [`ObservedPods`]. Clones share it.
#[derive(Debug, Clone)]
pub struct Observed {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pods: ArcSwap<ObservedPods>,
    version: watch::Sender<u64>,
}

impl Default for Observed {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { pods: ArcSwap::default(), version: watch::Sender::new(0) }) }
    }
}

impl Observed {
    /// The newest snapshot.
    pub fn load(&self) -> Arc<ObservedPods> {
        self.shared.pods.load_full()
    }

    /// Replaces the pod of `key`; `None` removes it. Wakes waiting readers.
    pub fn publish(&self, key: &PodKey, pod: Option<Arc<ObservedPod>>) {
        self.shared.pods.rcu(|current| {
            let mut next = ObservedPods::clone(current);
            match &pod {
                Some(pod) => next.pods.insert(key.clone(), Arc::clone(pod)),
                None => next.pods.remove(key),
            };
            next
        });
        self.touch();
    }

    /// Wakes the readers although no pod changed: a source's health or rejections did.
    pub fn touch(&self) {
        self.shared.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// The changes from now on. Subscribe before `load`, so that no change is missed.
    pub fn changes(&self) -> Changes {
        Changes(self.shared.version.subscribe())
    }

    /// Resolves at the next change after the call.
    pub async fn changed(&self) {
        self.changes().next().await;
    }
}

/// Waits for changes; those that arrive between two calls are reported as one.
#[derive(Debug)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Resolves once something changed since the last call; false when the publisher is gone.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::fixtures::observed;

    #[test]
    fn publish_replaces_and_removes() {
        let observed_pods = Observed::default();
        let pod = observed(serde_json::json!({"metadata": {"name": "web-edge1"}}));
        let key = pod.record.key.clone();
        let mut changes = observed_pods.changes();
        assert!(changes.next().now_or_never().is_none(), "nothing has changed yet");

        observed_pods.publish(&key, Some(Arc::clone(&pod)));
        observed_pods.publish(&key, Some(Arc::clone(&pod)));
        assert_eq!(changes.next().now_or_never(), Some(true), "two changes are seen as one");
        assert!(changes.next().now_or_never().is_none());
        let before = observed_pods.load();

        observed_pods.publish(&key, None);
        assert!(before.pods.contains_key(&key), "a snapshot is immutable");
        assert!(observed_pods.load().pods.is_empty());
        assert_eq!(changes.next().now_or_never(), Some(true));
    }
}
