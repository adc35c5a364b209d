//! How many pods the node may have at a time: `maxPods`. A pod has its place until it is over, as under kubelet, where pods
//! that have finished are not counted.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::NodeClaims;
use limpet_core::admission::{OUT_OF_PODS, Refusal};

/// All places of the node.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    count: usize,
}

impl Places {
    /// `None`: any number.
    pub(super) fn new(count: Option<usize>) -> Self {
        let count = count.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(count)), count }
    }
}

/// A pod's place, until this is dropped.
#[derive(Debug)]
pub struct Place {
    of: Arc<NodeClaims>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // First: who is woken looks at once.
        self.permit = None;
        self.of.wake_waiting();
    }
}

impl NodeClaims {
    /// A place for a pod; `None`: all are taken.
    pub fn take_place(self: &Arc<Self>) -> Option<Place> {
        let permit = Arc::clone(&self.places.free).try_acquire_owned().ok()?;
        Some(Place { of: Arc::clone(self), permit: Some(permit) })
    }

    /// Resolves once a place is free. Cancel safe.
    pub async fn has_free_place(&self) {
        // The semaphore is never closed.
        let _ = self.places.free.acquire().await;
    }

    /// All places are taken, in kubelet's words.
    pub fn out_of_pods(&self) -> Refusal {
        let count = self.places.count;
        let message = format!("Node didn't have enough resource: pods, requested: 1, used: {count}, capacity: {count}");
        Refusal { reason: OUT_OF_PODS.to_owned(), message }
    }
}
