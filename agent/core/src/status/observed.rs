//! The observed state of every pod, as one snapshot that readers load without a lock.
//!
//! Pod workers publish, one entry per pod; the local API, the command line and the metrics read. A reader sees one
//! consistent state and never blocks a worker. The last status of a pod that is gone stays for the registered
//! [`Consumer`]s until each has taken it: see [`super::retired`].

use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use tokio::sync::watch;

pub use super::observed_pod::{ObservedContainer, ObservedPod};
use super::retired::{ConsumerId, DroppedStatus, Retired};
use limpet_model::pod::{PodKey, PodUid};

/// Every pod that has a worker, by key.
#[derive(Debug, Clone, Default)]
pub struct ObservedPods {
    /// The pods; cheap to clone.
    pub pods: OrdMap<PodKey, Arc<ObservedPod>>,
    /// The UIDs of the apiserver's mirror pods of the node's own pods.
    mirrors: OrdMap<PodKey, Arc<str>>,
    /// The last statuses of pods that are gone, for their consumers.
    retired: Retired,
}

impl ObservedPods {
    /// A snapshot of these pods, without any that are gone.
    pub fn new(pods: OrdMap<PodKey, Arc<ObservedPod>>) -> Self {
        Self { pods, ..Self::default() }
    }

    /// The pod of that name, if it is the requested one by its UID or its mirror's, if the client gives one.
    pub fn find(&self, key: &PodKey, uid: Option<&str>) -> Option<&Arc<ObservedPod>> {
        let is_mirror = |uid: &str| self.mirrors.get(key).is_some_and(|mirror| **mirror == *uid);
        let pod = self.pods.get(key)?;
        uid.is_none_or(|uid| uid == pod.record.uid.as_str() || is_mirror(uid)).then_some(pod)
    }

    /// Whether a consumer still awaits the last status of the pod of that UID.
    pub fn is_awaited(&self, uid: &PodUid) -> bool {
        self.retired.has(uid)
    }

    /// Replaces the pod of `key`. A pod that is thereby gone, or replaced by one with another UID, is retired.
    fn replace(&mut self, key: &PodKey, pod: Option<Arc<ObservedPod>>) -> Option<DroppedStatus> {
        let uid = pod.as_ref().map(|pod| pod.record.uid.clone());
        let before = match pod {
            Some(pod) => self.pods.insert(key.clone(), pod),
            None => self.pods.remove(key),
        };
        before.filter(|before| uid != Some(before.record.uid.clone())).and_then(|gone| self.retired.retire(gone))
    }
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

    /// Replaces the pod of `key`; `None` removes it, and its last status stays for the consumers. Wakes waiting
    /// readers. Returns the last status of an earlier pod that had to make room for this one's.
    pub fn publish(&self, key: &PodKey, pod: Option<Arc<ObservedPod>>) -> Option<DroppedStatus> {
        let overdue = self.change(|next| next.replace(key, pod.clone()));
        self.touch();
        overdue
    }

    /// Sets the UID of the pod's mirror at the apiserver; `None` if there is none any more.
    pub fn set_mirror(&self, key: &PodKey, uid: Option<&str>) {
        if self.load().mirrors.get(key).map(|uid| &**uid) != uid {
            self.change(|next| match uid {
                Some(uid) => next.mirrors.insert(key.clone(), uid.into()),
                None => next.mirrors.remove(key),
            });
        }
    }

    /// Registers a consumer of the last statuses of pods; `name` is for messages.
    pub fn register(&self, name: &'static str) -> Consumer {
        let id = self.change(|next| next.retired.register(name));
        Consumer { observed: self.clone(), id }
    }

    /// How many consumers are registered.
    pub fn consumers(&self) -> usize {
        self.load().retired.consumers()
    }

    /// Replaces the snapshot by a changed one, whatever others change meanwhile.
    fn change<T>(&self, change: impl Fn(&mut ObservedPods) -> T) -> T {
        let mut current = self.shared.pods.load();
        loop {
            let mut next = ObservedPods::clone(&current);
            let result = change(&mut next);
            let before = self.shared.pods.compare_and_swap(&*current, Arc::new(next));
            if Arc::ptr_eq(&before, &current) {
                return result;
            }
            current = before;
        }
    }

    /// Wakes the readers although no pod changed, because a source's health or rejections did.
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

/// Receives the last status of every pod that is removed while it is registered. Dropping it unregisters it.
#[derive(Debug)]
pub struct Consumer {
    observed: Observed,
    id: ConsumerId,
}

impl Consumer {
    /// The statuses in that snapshot that it has not acknowledged, by version, the oldest first.
    pub fn awaited<'a>(&self, pods: &'a ObservedPods) -> impl Iterator<Item = (u64, &'a Arc<ObservedPod>)> + use<'a> {
        pods.retired.awaited_by(self.id)
    }

    /// Acknowledges that version. The status is dropped once every consumer has.
    pub fn acknowledge(&self, version: u64) {
        self.observed.change(|next| next.retired.acknowledge(self.id, version));
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.observed.change(|next| next.retired.leave(self.id));
    }
}

/// Waits for changes; those that arrive between two calls are reported as one.
#[derive(Debug)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Resolves once something changed since the last call; returns false when the publisher is gone.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

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

    #[test]
    fn a_pod_is_found_by_its_uid_and_its_mirrors() {
        let observed_pods = Observed::default();
        let pod = observed(serde_json::json!({"metadata": {"name": "web-edge1", "uid": "1"}}));
        let key = &pod.record.key;
        observed_pods.publish(key, Some(Arc::clone(&pod)));
        let is_found = |uid| observed_pods.load().find(key, uid).is_some();
        observed_pods.set_mirror(key, Some("2"));
        assert_eq!([None, Some("1"), Some("2"), Some("3")].map(is_found), [true, true, true, false]);
        observed_pods.set_mirror(key, None);
        assert_eq!([Some("1"), Some("2")].map(is_found), [true, false]);
    }

    #[test]
    fn a_pod_that_goes_or_is_replaced_is_kept_for_a_consumer() {
        let observed_pods = Observed::default();
        let pod = |uid: &str| observed(serde_json::json!({"metadata": {"name": "web-edge1", "uid": uid}}));
        let (first, second) = (pod("1"), pod("2"));
        let key = first.record.key.clone();
        let consumer = observed_pods.register("test");
        let awaited = || -> Vec<String> {
            consumer.awaited(&observed_pods.load()).map(|(_, pod)| pod.record.uid.to_string()).collect()
        };
        observed_pods.publish(&key, Some(Arc::clone(&first)));
        observed_pods.publish(&key, Some(Arc::clone(&first)));
        assert_eq!(awaited(), [""; 0], "a newer status of the same pod");
        observed_pods.publish(&key, Some(second));
        assert_eq!(awaited(), ["1"]);
        observed_pods.publish(&key, None);
        observed_pods.publish(&key, None);
        assert_eq!((awaited(), observed_pods.load().pods.len()), (vec!["1".to_owned(), "2".to_owned()], 0));
        let version = consumer.awaited(&observed_pods.load()).next().unwrap().0;
        consumer.acknowledge(version);
        assert_eq!(awaited(), ["2"]);
        drop(consumer);
        assert!(observed_pods.load().retired.is_empty(), "it went with its only consumer");
    }

    #[test]
    fn consumers_and_publishers_on_several_threads_lose_nothing() {
        let observed_pods = Observed::default();
        let pod = observed(serde_json::json!({"metadata": {"name": "web-edge1"}}));
        let done = Arc::new(AtomicBool::new(false));
        let consume = || {
            let (consumer, observed_pods, done) =
                (observed_pods.register("test"), observed_pods.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut taken = 0;
                loop {
                    let last = done.load(Ordering::SeqCst);
                    for (version, _) in consumer.awaited(&observed_pods.load()) {
                        consumer.acknowledge(version);
                        taken += 1;
                    }
                    if last {
                        return taken;
                    }
                }
            })
        };
        let consumers = [consume(), consume()];
        for _ in 0..100 {
            observed_pods.publish(&pod.record.key, Some(Arc::clone(&pod)));
            assert!(observed_pods.publish(&pod.record.key, None).is_none());
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(consumers.map(|consumer| consumer.join().unwrap()), [100, 100]);
        assert!(observed_pods.load().retired.is_empty());
    }
}
