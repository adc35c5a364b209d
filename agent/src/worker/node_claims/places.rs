//! How many pods the node may have at a time: `maxPods`. A pod has its place until it is over, as under kubelet, where pods
//! that have finished are not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::NodeClaims;
use limpet_core::admission::{OUT_OF_PODS, Refusal};

/// The places of the node. More may be taken than there are: by pods that were found running.
#[derive(Debug)]
pub(super) struct Places {
    count: usize,
    taken: AtomicUsize,
    freed: Notify,
}

impl Places {
    /// `None`: any number.
    pub(super) fn new(count: Option<usize>) -> Self {
        Self { count: count.unwrap_or(usize::MAX), taken: AtomicUsize::new(0), freed: Notify::new() }
    }
}

/// A pod's place, until this is dropped.
#[derive(Debug)]
pub struct Place {
    of: Arc<NodeClaims>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Before the wake-up: who is woken tries to take the place at once.
        self.of.places.taken.fetch_sub(1, Ordering::Relaxed);
        self.of.places.freed.notify_one();
        self.of.wake_waiting();
    }
}

impl NodeClaims {
    /// A place for a pod; `None`: all are taken.
    pub fn take_place(self: &Arc<Self>) -> Option<Place> {
        let next = |taken: usize| (taken < self.places.count).then_some(taken + 1);
        self.places.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Place { of: Arc::clone(self) })
    }

    /// The place of a pod that was found running, also beyond the number.
    pub fn place_of_running(self: &Arc<Self>) -> Place {
        self.places.taken.fetch_add(1, Ordering::Relaxed);
        Place { of: Arc::clone(self) }
    }

    /// Resolves once a place was given back, for one caller. Cancel safe.
    pub async fn place_freed(&self) {
        self.places.freed.notified().await;
    }

    /// All places are taken, in kubelet's words.
    pub fn out_of_pods(&self) -> Refusal {
        let (taken, count) = (self.places.taken.load(Ordering::Relaxed), self.places.count);
        let message = format!("Node didn't have enough resource: pods, requested: 1, used: {taken}, capacity: {count}");
        Refusal { reason: OUT_OF_PODS.to_owned(), message }
    }
}
