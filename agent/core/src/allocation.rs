//! Which pod gets what of the node: a slot among its pods, processor time, memory and disk space by their requests, what
//! only one pod can have (ports and exclusive devices), and a number of devices of plugins. Pure.
//!
//! A pod for which there is not enough waits and starts once there is; one of the apiserver fails, so that its controller
//! makes another one. A pod that was found running keeps what it uses without a check. [`Allocations`] is what all pods
//! have, [`PodAllocation`] how far one of them is; `limpet_worker::allocator` owns both and wakes those that wait.

mod assignment;
mod permits;
mod pod;
mod resizes;
mod room;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{Fingerprint, PodKey, PodRecord, PodUid};
use limpet_model::verdict::PodVerdict;

use crate::admission::{self, Refusal, Selectable};
use crate::device_plugins::Inventory;
use assignment::{Assignment, Check, Exclusive};
pub use pod::{PodAllocation, uses_node};
pub use resizes::NotResized;
use resizes::Resizes;
use room::{Purpose, Reservations, Room, one_slot};
pub use slots::SlotGrant;

/// What the node has for its pods, beside the devices of plugins.
#[derive(Debug, Clone, Default)]
pub struct NodeOffer {
    /// The node's name, which an affinity may require.
    pub node_name: String,
    /// How many pods it has at most; `None`: any number.
    pub max_pods: Option<usize>,
    /// `allowedUnsafeSysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The devices that one pod at a time can have.
    pub exclusive: BTreeSet<String>,
    /// What pods may request together; `None`: any amount.
    pub allocatable: Option<Requests>,
}

/// The node does not take a pod now.
#[derive(Debug)]
pub struct Refused {
    /// What happens to the pod.
    pub verdict: PodVerdict,
    /// The pods that have to end now to make room for it; `None`: none may.
    pub victims: Option<Vec<Arc<PodRecord>>>,
}

impl Refused {
    fn new(refusal: Refusal, record: &PodRecord) -> Self {
        Self { verdict: refusal.verdict(record.source), victims: None }
    }

    /// The pod fails, whatever its source.
    fn for_good(refusal: Refusal) -> Self {
        Self { verdict: refusal.for_good(), victims: None }
    }

    /// The pod waits, whatever its source: others end for it, or it ran here before the agent started and its plugin
    /// may not be back yet.
    fn for_now(refusal: Refusal) -> Self {
        Self { verdict: refusal.waiting(), victims: None }
    }
}

/// What pods have of the node now, and to whom what becomes free goes.
#[derive(Debug, Default)]
pub struct Allocations {
    offer: NodeOffer,
    /// What pods may have together, slots included.
    capacity: Requests,
    /// What pods may select, or have to tolerate.
    selectable: Selectable,
    /// Whether it comes from the Node object.
    object_seen: bool,
    assigned: BTreeMap<PodKey, Assignment>,
    /// The pods that have a slot, each in its newest version.
    slots: BTreeMap<PodKey, Arc<PodRecord>>,
    reservations: Reservations,
    /// The versions that were ordered to end for a critical pod and still have what they had.
    leaving: BTreeMap<PodKey, (PodUid, Fingerprint)>,
    resizes: Resizes,
    /// Whether something has changed that a waiting pod may wait for.
    freed: bool,
}

impl Allocations {
    /// The allocations of a node whose pods have nothing yet.
    pub fn new(offer: NodeOffer, labels: BTreeMap<String, String>) -> Self {
        let mut capacity = offer.allocatable.clone().unwrap_or_default();
        capacity[Resource::Pods] = Amount::from_units(offer.max_pods.unwrap_or_default() as u64);
        Self { offer, capacity, selectable: Selectable { labels, taints: Vec::new() }, ..Self::default() }
    }

    /// Whether something has changed since the last call that a waiting pod may wait for, so that all that wait must
    /// look again.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Sets the node's labels and taints. A critical pod may have waited for them: while it could not run here, no
    /// other pod was ended for it.
    pub fn set_selectable(&mut self, now: Selectable) {
        self.object_seen = true;
        self.freed |= self.selectable != now;
        self.selectable = now;
    }

    /// Withdraws the order that the pod end for a critical one.
    pub fn forget_order(&mut self, key: &PodKey) {
        self.leaving.remove(key);
        self.freed = true;
    }

    /// Frees everything of a pod that is gone.
    pub fn release(&mut self, key: &PodKey, plugins: &mut Inventory) {
        self.freed |= self.slots.remove(key).is_some();
        self.release_assigned(key, plugins);
    }

    /// Frees everything of the pod except its slot.
    fn release_assigned(&mut self, key: &PodKey, plugins: &mut Inventory) {
        plugins.free(key);
        self.freed |= self.assigned.remove(key).is_some();
        if !self.slots.contains_key(key) {
            self.freed |= self.leaving.remove(key).is_some();
        }
        self.forget_reserved(key, Purpose::Start);
        self.forget_resize(key);
    }

    /// Whether the pod may run on this node at all. A scheduler has chosen it for a pod of the apiserver, by labels
    /// that a start without a connection does not know.
    fn selects(&self, record: &PodRecord) -> Result<(), Refusal> {
        if record.source.traits().is_scheduled && !self.object_seen {
            return Ok(());
        }
        admission::selects_node(record, &self.offer.node_name, &self.selectable.labels)
    }

    /// Whether the pod tolerates the node's taints.
    fn tolerates(&self, record: &PodRecord) -> Result<(), Refusal> {
        if record.source.traits().is_scheduled && !self.object_seen {
            return Ok(());
        }
        admission::tolerates_node(record, &self.selectable.taints)
    }

    /// Gives `wanted` to the pod instead of what it has, if the others leave it as far as that is checked.
    fn allocate(&mut self, key: &PodKey, wanted: Assignment, check: Check, plugins: &Inventory) -> Result<(), Refused> {
        let checked = self.check(key, &wanted, check, plugins);
        if let Err(refused) = checked {
            if let Some(victims) = &refused.victims {
                self.order(victims);
                self.reservations.reserve(&wanted.record, self.counted(&wanted, check), Purpose::Start);
            }
            return Err(refused);
        }
        if check.slot {
            self.slots.insert(key.clone(), Arc::clone(&wanted.record));
        }
        self.forget_reserved(key, Purpose::Start);
        self.freed |= self.assigned.insert(key.clone(), wanted).is_some();
        Ok(())
    }

    /// Decides whether the node admits the pod: whether the node suits it, and the others leave what it requests. The
    /// checks are in kubelet's order, because kubelet names one reason.
    fn check(&self, key: &PodKey, wanted: &Assignment, check: Check, plugins: &Inventory) -> Result<(), Refused> {
        let refused = |refusal| Refused::new(refusal, &wanted.record);
        let others = || self.assigned.iter().filter(|(other, _)| *other != key);
        if check.node {
            self.offer.permits(&wanted.record).map_err(Refused::for_good)?;
        }
        if check.devices
            && let Err(refusal) = has_devices(plugins, wanted, others())
        {
            let had = plugins.has_had(&wanted.record.uid);
            return Err(if had { Refused::for_now(refusal) } else { refused(refusal) });
        }
        let taken = |counts: fn(&Exclusive) -> bool| {
            let owner = |wanted: &Exclusive| {
                others().find(|(_, theirs)| theirs.exclusive.iter().any(|taken| taken.conflicts_with(wanted)))
            };
            let exclusive = wanted.exclusive.iter().filter(|part| check.exclusive && counts(part));
            let refusal = exclusive.filter_map(|part| owner(part).map(|(owner, _)| part.taken(owner))).next();
            refusal.map_or(Ok(()), |refusal| Err(refused(refusal)))
        };
        let room = self.room(&wanted.record, &self.counted(wanted, check));
        if let Room::Short(refusal) = room {
            return Err(refused(refusal));
        }
        taken(Exclusive::is_resource)?;
        if check.node {
            self.selects(&wanted.record).map_err(refused)?;
        }
        taken(|part| !part.is_resource())?;
        if check.node {
            self.tolerates(&wanted.record).map_err(refused)?;
        }
        // No pod ends for one that something else keeps from starting.
        if let Room::Soon { refusal, victims } = room {
            return Err(Refused { victims: Some(victims), ..Refused::for_now(refusal) });
        }
        Ok(())
    }

    /// What the pod requests of limited resources, as far as that is checked.
    fn counted(&self, wanted: &Assignment, check: Check) -> Requests {
        let requests = (check.requests && self.offer.allocatable.is_some()).then(|| wanted.requests.clone());
        let slot = if check.slot { self.slot() } else { Requests::default() };
        requests.unwrap_or_default().plus(&slot)
    }
}

/// Whether there are enough healthy devices of plugins beside those of `others`.
fn has_devices<'a>(
    plugins: &Inventory,
    wanted: &Assignment,
    others: impl Iterator<Item = (&'a PodKey, &'a Assignment)> + Clone,
) -> Result<(), Refusal> {
    wanted.devices.iter().try_for_each(|(name, count)| {
        // A device that is not healthy is not offered, whichever pod has it.
        let healthy = |(key, theirs): (&PodKey, &Assignment)| {
            let assigned = theirs.devices.get(name).copied().unwrap_or(0);
            assigned.saturating_sub(plugins.unhealthy_of(key, name))
        };
        let offered = plugins.is_known(name).then(|| plugins.offer(name));
        admission::has_devices(name, *count, others.clone().map(healthy).sum(), offered)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
