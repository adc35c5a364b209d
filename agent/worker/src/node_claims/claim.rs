//! A pod's claim, which ends what the pod has of the node when it is dropped, and why a pod is given none. Part of
//! [`super`].

use std::sync::Arc;

use limpet_core::admission::Refusal;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;

use super::{NodeClaims, Purpose};

/// The node does not take a pod now.
#[derive(Debug)]
pub struct Refused {
    /// What becomes of it.
    pub verdict: PodVerdict,
    /// The pods that have to end now to make room for it; `None`: none may.
    pub victims: Option<Vec<Arc<PodRecord>>>,
}

impl Refused {
    pub(super) fn of(refusal: Refusal, record: &PodRecord) -> Self {
        Self { verdict: refusal.verdict(record.source), victims: None }
    }

    /// It waits, whatever its source: others end for it, or it ran here before the agent started and its plugin may not
    /// be back yet.
    pub(super) fn for_now(refusal: Refusal) -> Self {
        Self { verdict: refusal.verdict(SourceKind::File), victims: None }
    }
}

/// What a pod has until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) of: Arc<NodeClaims>,
    pub(super) key: PodKey,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.offer.plugins.free(&self.key);
        let mut given = self.of.given();
        let mut freed = given.claims.remove(&self.key).is_some();
        if !given.places.contains_key(&self.key) {
            freed |= given.forget_order(&self.key);
        }
        freed |= given.forget_reserved(&self.key, Purpose::Start);
        drop(given);
        self.of.forget_resize(&self.key);
        if freed {
            self.of.wake_all();
        }
    }
}
