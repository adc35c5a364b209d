//! What one pod has of the node, from its worker's point of view.

use std::sync::Arc;

use tokio::sync::Notify;

use super::claim::{Claim, Refused};
use super::{Check, Claims, Entry, NodeClaims, PodSlot};
use limpet_core::admission::{NODE_AFFINITY, OUT_OF, TAINT_TOLERATION, UNEXPECTED};
use limpet_core::plan::is_finished;
use limpet_core::state::{ContainerSlot, PodState, SandboxState};
use limpet_model::pod::host_port::NODE_PORTS;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;

/// What one pod has of the node.
#[derive(Debug, Default)]
pub struct Hold {
    /// Its place among the node's pods.
    pub(super) place: Option<PodSlot>,
    pub(super) claim: Option<Claim>,
    /// The version that has all it needs.
    pub(super) settled: Option<Arc<PodRecord>>,
    /// Set while it waits for something.
    waits: Option<Arc<Notify>>,
    /// Set while a resize of it waits for room.
    pub(super) room: Option<Arc<Notify>>,
}

impl Hold {
    /// Of a pod that was found: what its incarnations use now.
    pub fn of_found<'a>(node: &Arc<NodeClaims>, key: &PodKey, found: impl Iterator<Item = &'a PodState>) -> Self {
        let mut uids = Vec::new();
        let using = found.filter(|pod| uses_node(pod)).inspect(|pod| uids.push(pod.record.uid.clone()));
        let used = using.map(|pod| node.wanted(&pod.record)).reduce(|mut all, one| {
            all.exclusive.extend(one.exclusive);
            for (name, count) in one.devices {
                *all.devices.entry(name).or_insert(0) += count;
            }
            Claims { requests: all.requests.plus(&one.requests), ..all }
        });
        let Some(used) = used.filter(|used| !used.is_empty()) else { return Self::default() };
        if node
            .allocate(key, used, Check { place: false, node: false, exclusive: false, requests: false, devices: false })
            .is_err()
        {
            return Self::default();
        }
        uids.iter().for_each(|uid| node.offer.plugins.restore(key, uid));
        Self { claim: Some(Claim { of: Arc::clone(node), key: key.clone() }), ..Self::default() }
    }

    /// The pod has that from now on.
    pub fn begin(&mut self, entry: Option<Entry>) {
        match entry {
            Some(Entry::PodSlot(place)) => self.place = Some(place),
            Some(Entry::Promise(promise)) => self.claim = Some(promise.0),
            None => {}
        }
    }

    /// Brings the claim in line with what the pod needs. A refusal: it begins to wait, waits for another reason, or
    /// fails.
    pub fn settle(&mut self, node: &Arc<NodeClaims>, key: &PodKey, pod: &mut PodState) -> Option<Refused> {
        let leaves = pod.ending.is_some() || pod.is_failed();
        if leaves {
            // It may take its time to end, and grows no more.
            self.forget_resize();
        }
        let ends = leaves || is_finished(pod);
        if ends && !uses_node(pod) {
            self.release();
        }
        if ends || self.settled.as_ref().is_some_and(|settled| Arc::ptr_eq(settled, &pod.record)) {
            return None;
        }
        // Before the look: a change after it is not missed.
        let waits = node.wait(key);
        match self.claim(node, key, pod) {
            Ok(()) => {
                self.waits = None;
                self.settled = Some(Arc::clone(&pod.record));
                pod.verdict.take_if(|verdict| is_claim(verdict));
                None
            }
            Err(refused) => {
                if refused.verdict.is_final() {
                    pod.fail(refused.verdict.clone());
                    if !uses_node(pod) {
                        self.release();
                    }
                    return Some(refused);
                }
                if refused.victims.is_none() {
                    node.forget_reserved(key);
                }
                self.waits = Some(waits);
                let known = pod.verdict.as_ref() == Some(&refused.verdict);
                pod.verdict = Some(refused.verdict.clone());
                let ends_others = refused.victims.as_ref().is_some_and(|victims| !victims.is_empty());
                (!known || ends_others).then_some(refused)
            }
        }
    }

    fn claim(&mut self, node: &Arc<NodeClaims>, key: &PodKey, pod: &PodState) -> Result<(), Refused> {
        let uses = uses_node(pod);
        node.renew_place(&pod.record);
        if !uses {
            node.permits(&pod.record).map_err(|refusal| Refused { verdict: refusal.for_good(), victims: None })?;
        }
        let place = !uses && self.place.is_none();
        let wanted = node.wanted(&pod.record);
        let has = self.claim.is_some().then(|| node.given().claims.get(key).cloned()).flatten();
        if has.is_none() && uses && wanted.is_empty() {
            return Ok(());
        }
        // One that was found without a claim uses what it names, and an edit of the requests of one that runs counts at
        // once.
        let check = match &has {
            None => Check { place, node: !uses, exclusive: !uses, requests: !uses, devices: !uses },
            Some(has) => Check {
                place,
                node: !uses,
                exclusive: wanted.grows_exclusively(has),
                requests: !uses && wanted.requests_more(has),
                // A plugin may have registered what the scheduler alone has counted, for a pod that runs without it.
                devices: wanted.has_more_devices(has) && !(uses && pod.record.source == SourceKind::Api),
            },
        };
        // Also of one that waits for the end of others: what is kept for it is free once it is gone.
        self.claim.get_or_insert_with(|| Claim { of: Arc::clone(node), key: key.clone() });
        node.allocate(key, wanted, check)?;
        if place {
            self.place = Some(node.place_of(key));
        }
        node.offer.plugins.restore(key, &pod.record.uid);
        Ok(())
    }

    /// Releases everything but its place. While the node is short of something many pods may wait, each with a worker:
    /// the next pod without a place is given none.
    pub fn give_back_claims(&mut self) {
        *self = Self { place: self.place.take(), ..Self::default() };
    }

    /// Releases everything.
    pub fn release(&mut self) {
        *self = Self::default();
    }

    /// Resolves when something changes that the pod may be waiting for.
    pub async fn freed(&self) {
        match self.waits.as_ref().or(self.room.as_ref()) {
            Some(waits) => waits.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Whether a pod waits because of a claim.
pub(super) fn is_claim(verdict: &PodVerdict) -> bool {
    let reason = &*verdict.reason;
    !verdict.is_final()
        && ([NODE_PORTS, NODE_AFFINITY, TAINT_TOLERATION, UNEXPECTED].contains(&reason) || reason.starts_with(OUT_OF))
}

/// Whether something of the pod may be bound to its ports, or have its devices open.
pub fn uses_node(pod: &PodState) -> bool {
    let has_sandbox = match pod.sandbox {
        SandboxState::Absent { .. } | SandboxState::Gone => false,
        SandboxState::Preparing | SandboxState::Releasing => true,
        SandboxState::Ready(_) | SandboxState::Unknown | SandboxState::Examining => true,
    };
    has_sandbox || pod.containers.iter().any(ContainerSlot::is_running)
}
