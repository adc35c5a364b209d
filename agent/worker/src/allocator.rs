//! Tracks what the node has allocated to pods, and wakes pods that wait for something to become free.
//! [`limpet_core::allocation`] decides what a pod gets, under one lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limpet_core::admission::Selectable;
use limpet_core::allocation::{Allocations, NodeOffer, NotResized, PodAllocation, Refused};
use limpet_core::device_plugins::Inventory;
use limpet_core::node_state::NodeState;
use limpet_core::state::PodState;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_plugins::device_plugins::DevicePlugins;
use tokio::sync::{Notify, watch};

/// The current allocations.
#[derive(Debug)]
pub struct Allocator {
    plugins: Arc<DevicePlugins>,
    state: Mutex<State>,
    /// Notified when a pod without a worker may get a slot.
    slot_freed: Notify,
}

#[derive(Debug)]
struct State {
    allocations: Allocations,
    /// Pods that wait for a change; a map, so that they are woken in the order of their keys.
    waiting: BTreeMap<PodKey, Arc<Notify>>,
}

impl Default for Allocator {
    /// For a node with unlimited resources.
    fn default() -> Self {
        Self::new(NodeOffer::default(), BTreeMap::new(), Arc::default())
    }
}

impl Allocator {
    /// An allocator without allocations.
    pub fn new(offer: NodeOffer, labels: BTreeMap<String, String>, plugins: Arc<DevicePlugins>) -> Self {
        let state = State { allocations: Allocations::new(offer, labels), waiting: BTreeMap::new() };
        Self { plugins, state: Mutex::new(state), slot_freed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, then wakes those that wait for what has become free.
    fn decide<T>(&self, decide: impl FnOnce(&mut State, &mut Inventory) -> T) -> T {
        let mut state = self.state();
        let result = self.plugins.change(|plugins| decide(&mut state, plugins));
        if !state.allocations.take_freed() {
            return result;
        }
        let waiting = std::mem::take(&mut state.waiting);
        // Released before they are woken, because each immediately tries to take what is free.
        drop(state);
        self.slot_freed.notify_one();
        waiting.values().for_each(|changed| changed.notify_one());
        result
    }

    /// Sets the node's labels and taints.
    pub fn set_selectable(&self, now: Selectable) {
        self.decide(|state, _| state.allocations.set_selectable(now));
    }

    /// Records that the pod was not ordered to end after all.
    pub fn forget_order(&self, key: &PodKey) {
        self.decide(|state, _| state.allocations.forget_order(key));
    }

    /// Reports changes of the devices of plugins.
    pub fn device_changes(&self) -> watch::Receiver<u64> {
        self.plugins.subscribe()
    }

    /// Whether the pod has devices of plugins, or waits for some.
    pub fn wants_plugins(&self, record: &PodRecord) -> bool {
        self.plugins.with(|plugins| plugins.pod_wants(record).next().is_some())
    }

    /// A slot for a pod, or the promise of one.
    ///
    /// # Errors
    ///
    /// All slots are taken, and no pods may be ended for this one, or ending them would not suffice.
    pub fn enter(self: &Arc<Self>, record: &Arc<PodRecord>) -> Result<AllocationGuard, Refused> {
        self.decide(|state, plugins| state.allocations.enter(record, plugins))?;
        Ok(self.guard(&record.key))
    }

    /// The slot of a pod that was found running, even beyond the limit.
    pub fn enter_running(self: &Arc<Self>, record: &Arc<PodRecord>) -> AllocationGuard {
        self.decide(|state, _| state.allocations.enter_running(record));
        self.guard(&record.key)
    }

    /// Guards the pod's allocations, which are released when the guard is dropped. A pod has one guard.
    pub fn guard(self: &Arc<Self>, key: &PodKey) -> AllocationGuard {
        AllocationGuard {
            node: Arc::clone(self),
            key: key.clone(),
            allocation: PodAllocation::default(),
            changed: Arc::default(),
        }
    }

    /// Resolves once a slot may be free, for one caller: one is free, or a critical pod may now have another ended.
    /// Cancel safe.
    pub async fn slot_freed(&self) {
        self.slot_freed.notified().await;
    }
}

/// The allocations of one pod, released on drop.
#[derive(Debug)]
pub struct AllocationGuard {
    node: Arc<Allocator>,
    key: PodKey,
    allocation: PodAllocation,
    /// Notified when something changes for which the pod waits.
    changed: Arc<Notify>,
}

impl AllocationGuard {
    /// Records what a found pod's incarnations use.
    pub fn adopt<'a>(&self, incarnations: impl Iterator<Item = &'a PodState>) {
        self.node
            .decide(|state, plugins| PodAllocation::adopt(&mut state.allocations, plugins, &self.key, incarnations));
    }

    /// Decides whether the node admits the pod now, and adjusts its allocations. `alone` means that no other
    /// incarnation of it uses the node. A refusal means that the pod begins to wait, waits for another reason, or
    /// fails.
    pub fn admit(&mut self, pod: &mut PodState, node: NodeState, alone: bool) -> Option<Refused> {
        if self.allocation.is_settled(pod) {
            return None;
        }
        self.waiting(|allocation, allocations, plugins| allocation.admit((allocations, plugins), pod, node, alone))
    }

    /// Decides whether an admitted pod may have the requests of `desired` now, and allocates them. Otherwise it waits
    /// for them: see [`Self::freed`].
    ///
    /// # Errors
    ///
    /// They do not fit, or a pod that runs never gets them.
    pub fn resize(&mut self, pod: &PodState, desired: &Arc<PodRecord>) -> Result<(), NotResized> {
        self.waiting(|allocation, allocations, plugins| allocation.resize(allocations, plugins, pod, desired))
    }

    /// Decides and, if the pod does not get everything, registers it for the next change, under the same lock so that
    /// no change is missed.
    fn waiting<T>(&mut self, decide: impl FnOnce(&mut PodAllocation, &mut Allocations, &mut Inventory) -> T) -> T {
        let Self { node, key, allocation, changed } = self;
        node.decide(|state, plugins| {
            let result = decide(allocation, &mut state.allocations, plugins);
            if allocation.waits() {
                *changed = Arc::clone(state.waiting.entry(key.clone()).or_default());
            }
            result
        })
    }

    /// Records that the pod no longer waits for room.
    pub fn forget_resize(&mut self) {
        let Self { node, key, allocation, .. } = self;
        node.decide(|state, _| allocation.forget_resize(&mut state.allocations, key));
    }

    /// Releases everything.
    pub fn release(&mut self) {
        let Self { node, key, allocation, .. } = self;
        node.decide(|state, plugins| allocation.release(&mut state.allocations, plugins, key));
    }

    /// Resolves when something changes for which the pod may be waiting.
    pub async fn freed(&self) {
        match self.allocation.waits() {
            true => self.changed.notified().await,
            false => std::future::pending().await,
        }
    }
}

impl Drop for AllocationGuard {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
