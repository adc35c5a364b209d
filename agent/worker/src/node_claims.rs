//! What pods have of the node: a place among its pods, processor time, memory and disk space by their requests, what
//! only one pod can have (ports and exclusive devices), and a number of devices of plugins. A pod for which there is
//! not enough waits and starts once there is; one of the apiserver fails, so that its controller makes another one. A
//! pod that was found running has its claims without a check.

mod allocations;
mod claim;
mod hold;
mod permits;
mod places;
mod resizes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use allocations::{Allocations, Purpose, Room, one_place};
use limpet_core::admission::{self, OUT_OF, PendingResize, Refusal, Selectable};
use limpet_model::pod::device::pod_devices;
use limpet_model::pod::host_port::{HostPort, NODE_PORTS, host_ports};
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_plugins::device_plugins::DevicePlugins;
use tokio::sync::{Notify, watch};

pub use claim::Refused;
pub use hold::{Hold, uses_node};
pub use places::Entry;
use places::PodSlot;
pub use resizes::NoRoom;

/// What only one pod can have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Exclusive {
    Port(HostPort),
    /// A device, by its resource's name.
    Device(String),
}

impl Exclusive {
    fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(one), Self::Port(other)) => one.conflicts_with(other),
            (Self::Device(one), Self::Device(other)) => one == other,
            _ => false,
        }
    }

    /// Whether it is a resource of the node, as kubelet sees it.
    fn is_resource(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// It is refused, because `owner` has it.
    fn taken(&self, owner: &PodKey) -> Refusal {
        match self {
            Self::Port(port) => Refusal {
                reason: NODE_PORTS.to_owned(),
                message: format!(
                    "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: {port} is \
                     taken by pod {owner}"
                ),
            },
            Self::Device(name) => Refusal {
                reason: format!("{OUT_OF}{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: 1, used: 1, capacity: 1: pod {owner} has it"
                ),
            },
        }
    }
}

/// What one pod has, or requests.
#[derive(Debug, Clone)]
struct Claims {
    record: Arc<PodRecord>,
    exclusive: Vec<Exclusive>,
    requests: Requests,
    /// How many devices of plugins, by resource.
    devices: BTreeMap<String, usize>,
}

impl Claims {
    fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.requests.is_zero() && self.devices.is_empty()
    }

    /// Whether it has more devices of plugins than `before`.
    fn has_more_devices(&self, before: &Self) -> bool {
        self.devices.iter().any(|(name, count)| before.devices.get(name).is_none_or(|before| before < count))
    }

    /// Whether it has something that only one can have and that `before` lacks.
    fn grows_exclusively(&self, before: &Self) -> bool {
        self.exclusive.iter().any(|one| !before.exclusive.contains(one))
    }

    fn requests_more(&self, before: &Self) -> bool {
        !self.requests.clone().without(&before.requests).is_zero()
    }
}

/// What has to be free before a pod gets it; a pod has what it uses already, even if others do too.
#[derive(Debug, Clone, Copy)]
struct Check {
    /// It has no place among the pods yet, and gets one.
    place: bool,
    /// It has not begun: it may run on this node.
    node: bool,
    exclusive: bool,
    requests: bool,
    devices: bool,
}

/// What the node has for its pods.
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
    pub plugins: Arc<DevicePlugins>,
    /// What pods may request together; `None`: any amount.
    pub allocatable: Option<Requests>,
}

/// What pods have of the node now.
#[derive(Debug)]
pub struct NodeClaims {
    offer: NodeOffer,
    /// What pods may have together, places included.
    capacity: Requests,
    /// What pods may select, or have to tolerate.
    selectable: Mutex<Selectable>,
    /// Whether it comes from the Node object.
    object_seen: AtomicBool,
    given: Mutex<Allocations>,
    /// Notified when a pod without a worker may have a place.
    place_freed: Notify,
    /// Changes of the devices of plugins, which may be what such a pod waits for.
    device_changes: tokio::sync::Mutex<watch::Receiver<u64>>,
    /// The resizes that wait for room, and how many have begun to.
    resizes: Mutex<(BTreeMap<PodKey, PendingResize>, u64)>,
    /// Those that wait until something changes. A map: they are woken in the order of their keys.
    waiting: Mutex<BTreeMap<PodKey, Arc<Notify>>>,
}

impl Default for NodeClaims {
    /// A node on which nothing is short.
    fn default() -> Self {
        Self::new(NodeOffer::default(), BTreeMap::new())
    }
}

impl NodeClaims {
    /// Nothing is claimed yet.
    pub fn new(offer: NodeOffer, labels: BTreeMap<String, String>) -> Self {
        let mut capacity = offer.allocatable.clone().unwrap_or_default();
        capacity[Resource::Pods] = Amount::from_units(offer.max_pods.unwrap_or_default() as u64);
        let device_changes = tokio::sync::Mutex::new(offer.plugins.subscribe());
        Self {
            offer,
            capacity,
            selectable: Mutex::new(Selectable { labels, taints: Vec::new() }),
            object_seen: AtomicBool::default(),
            given: Mutex::default(),
            place_freed: Notify::new(),
            device_changes,
            resizes: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// The node has these labels and taints from now on.
    pub fn set_selectable(&self, now: Selectable) {
        self.object_seen.store(true, Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.selectable(), now.clone());
        if before != now {
            // Also a critical pod for which no other one was to end, because it could not run here.
            self.wake_all();
        }
    }

    /// Whether the pod may run on this node at all. A scheduler has chosen it for a pod of the apiserver, by labels
    /// that a start without a connection does not know.
    fn selects(&self, record: &PodRecord) -> Result<(), Refusal> {
        if record.source == SourceKind::Api && !self.object_seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        admission::selects_node(record, &self.offer.node_name, &self.selectable().labels)
    }

    /// Whether the pod tolerates the node's taints.
    fn tolerates(&self, record: &PodRecord) -> Result<(), Refusal> {
        if record.source == SourceKind::Api && !self.object_seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        admission::tolerates_node(record, &self.selectable().taints)
    }

    fn selectable(&self) -> MutexGuard<'_, Selectable> {
        self.selectable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self) -> MutexGuard<'_, Allocations> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self, record: &Arc<PodRecord>) -> Claims {
        let spec = record.spec();
        let devices = pod_devices(spec).into_keys().filter(|name| self.offer.exclusive.contains(*name));
        let ports = host_ports(spec).into_iter().map(Exclusive::Port);
        Claims {
            record: Arc::clone(record),
            exclusive: ports.chain(devices.map(|name| Exclusive::Device(name.to_owned()))).collect(),
            requests: Requests::of(spec),
            devices: self.offer.plugins.pod_wants(record).map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }

    /// Reports changes of the devices of plugins.
    pub fn device_changes(&self) -> watch::Receiver<u64> {
        self.offer.plugins.subscribe()
    }

    /// Whether the pod has devices of plugins, or waits for some.
    pub fn wants_plugins(&self, record: &PodRecord) -> bool {
        self.offer.plugins.pod_wants(record).next().is_some()
    }

    /// Whether there are enough healthy devices of plugins beside those of `others`.
    fn has_devices<'a>(
        &self,
        wanted: &Claims,
        others: impl Iterator<Item = (&'a PodKey, &'a Claims)> + Clone,
    ) -> Result<(), Refusal> {
        self.offer.plugins.with(|inventory| {
            wanted.devices.iter().try_for_each(|(name, count)| {
                // A device that is not healthy is not offered, whichever pod has it.
                let healthy = |(key, theirs): (&PodKey, &Claims)| {
                    let claimed = theirs.devices.get(name).copied().unwrap_or(0);
                    claimed.saturating_sub(inventory.unhealthy_of(key, name))
                };
                let offered = inventory.is_known(name).then(|| inventory.offer(name));
                admission::has_devices(name, *count, others.clone().map(healthy).sum(), offered)
            })
        })
    }

    /// Gives `wanted` to the pod instead of what it has, if the others leave it as far as that is checked.
    fn allocate(&self, key: &PodKey, wanted: Claims, check: Check) -> Result<(), Refused> {
        let mut given = self.given();
        let checked = self.check(&given, key, &wanted, check);
        if let Err(refused) = checked {
            if let Some(victims) = &refused.victims {
                given.order(victims);
                given.reserve(&wanted.record, self.counted(&wanted, check), Purpose::Start);
            }
            return Err(refused);
        }
        if check.place {
            given.places.insert(key.clone(), Arc::clone(&wanted.record));
        }
        let had_reserved = given.forget_reserved(key, Purpose::Start);
        if given.claims.insert(key.clone(), wanted).is_some() || had_reserved {
            drop(given);
            self.wake_all();
        }
        Ok(())
    }

    /// Nothing is kept for the start of the pod any more.
    fn forget_reserved(&self, key: &PodKey) {
        let had_reserved = self.given().forget_reserved(key, Purpose::Start);
        if had_reserved {
            self.wake_all();
        }
    }

    /// The pod was not ordered to end after all.
    pub fn forget_order(&self, key: &PodKey) {
        self.given().forget_order(key);
        self.wake_waiting();
    }

    /// Whether the others leave what the pod requests, and the node suits it: in kubelet's order, which names one reason.
    fn check(&self, given: &Allocations, key: &PodKey, wanted: &Claims, check: Check) -> Result<(), Refused> {
        let refused = |refusal| Refused::of(refusal, &wanted.record);
        let others = || given.claims.iter().filter(|(other, _)| *other != key);
        if check.devices
            && let Err(refusal) = self.has_devices(wanted, others())
        {
            let had = self.offer.plugins.with(|inventory| inventory.has_had(&wanted.record.uid));
            return Err(if had { Refused::for_now(refusal) } else { refused(refusal) });
        }
        let taken = |counts: fn(&Exclusive) -> bool| {
            let owner = |one: &Exclusive| {
                others().find(|(_, theirs)| theirs.exclusive.iter().any(|taken| taken.conflicts_with(one)))
            };
            let exclusive = wanted.exclusive.iter().filter(|one| check.exclusive && counts(one));
            let refusal = exclusive.filter_map(|one| owner(one).map(|(owner, _)| one.taken(owner))).next();
            refusal.map_or(Ok(()), |refusal| Err(refused(refusal)))
        };
        let room = given.room(&wanted.record, &self.counted(wanted, check), &self.capacity);
        if let Room::Short(refusal) = room {
            return Err(refused(refusal));
        }
        taken(Exclusive::is_resource)?;
        if check.node {
            self.selects(&wanted.record).map_err(refused)?;
        }
        taken(|one| !one.is_resource())?;
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
    fn counted(&self, wanted: &Claims, check: Check) -> Requests {
        let requests = (check.requests && self.offer.allocatable.is_some()).then(|| wanted.requests.clone());
        let place = if check.place { self.place() } else { Requests::default() };
        requests.unwrap_or_default().plus(&place)
    }

    /// What wakes the pod when something changes from now on.
    fn wait(&self, key: &PodKey) -> Arc<Notify> {
        Arc::clone(self.waiting.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default())
    }

    /// Also pods that have no worker because there is no place for them.
    fn wake_all(&self) {
        self.place_freed.notify_one();
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.values().for_each(|changed| changed.notify_one());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
