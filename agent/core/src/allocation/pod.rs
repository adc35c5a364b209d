//! How far one pod is in getting what it needs of the node. Part of [`super`].

use std::sync::Arc;

use limpet_model::pod::host_port::NODE_PORTS;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::verdict::PodVerdict;

use super::{Allocations, Assignment, Check, NotResized, Purpose, Refused};
use crate::admission::{NODE_AFFINITY, OUT_OF, TAINT_TOLERATION, UNEXPECTED, refuse_start, waits};
use crate::cpu_allocation::infeasible;
use crate::device_plugins::Inventory;
use crate::node_state::NodeState;
use crate::plan::is_finished;
use crate::state::{ContainerSlot, PodState, SandboxState};

/// What one pod waits for; what it has is in [`Allocations`], by its key.
#[derive(Debug, Default)]
pub struct PodAllocation {
    /// The version that has all it needs.
    settled: Option<Arc<PodRecord>>,
    waits_to_start: bool,
    waits_to_grow: bool,
}

impl PodAllocation {
    /// Takes over a pod that was found running: its incarnations keep what they use now.
    pub fn adopt<'a>(
        node: &mut Allocations,
        plugins: &mut Inventory,
        key: &PodKey,
        incarnations: impl Iterator<Item = &'a PodState>,
    ) {
        let mut uids = Vec::new();
        let using = incarnations.filter(|pod| uses_node(pod)).inspect(|pod| uids.push(pod.record.uid.clone()));
        let used = using.map(|pod| Assignment::wanted(&pod.record, &node.offer, plugins)).reduce(Assignment::merge);
        if let Some(used) = used.filter(|used| !used.is_empty()) {
            node.assigned.insert(key.clone(), used);
            uids.iter().for_each(|uid| plugins.restore(key, uid));
        }
    }

    /// Asks whether the node admits the pod, at every change of either. While the node is short of something or shuts
    /// down no pod begins, and what the pod needs must be there. `alone`: no other incarnation of it uses the node.
    /// After a refusal the pod begins to wait, waits for another reason, or fails.
    pub fn admit(
        &mut self,
        (allocations, plugins): (&mut Allocations, &mut Inventory),
        pod: &mut PodState,
        node: NodeState,
        alone: bool,
    ) -> Option<Refused> {
        let refused = refuse_start(pod, node).then(|| pod.verdict.clone()).flatten();
        if alone && waits(pod) {
            self.release_assigned(allocations, plugins, &pod.record.key);
        } else if alone && let Some(refused) = self.settle(allocations, plugins, pod) {
            return Some(refused);
        }
        refused.map(|verdict| Refused { verdict, victims: None })
    }

    /// Gives the pod what it needs. After a refusal it begins to wait, waits for another reason, or fails.
    pub(super) fn settle(
        &mut self,
        node: &mut Allocations,
        plugins: &mut Inventory,
        pod: &mut PodState,
    ) -> Option<Refused> {
        let leaves = pod.ending.is_some() || pod.is_failed();
        if leaves {
            // The pod may take its time to end, and grows no more.
            self.forget_resize(node, &pod.record.key);
        }
        let ends = leaves || is_finished(pod);
        if ends && !uses_node(pod) {
            self.release(node, plugins, &pod.record.key);
        }
        if ends || self.has_version(pod) {
            return None;
        }
        match allocate(node, plugins, pod) {
            Ok(()) => {
                self.waits_to_start = false;
                self.settled = Some(Arc::clone(&pod.record));
                pod.verdict.take_if(|verdict| is_refusal(verdict));
                None
            }
            Err(refused) => self.refuse(node, plugins, pod, refused),
        }
    }

    fn refuse(
        &mut self,
        node: &mut Allocations,
        plugins: &mut Inventory,
        pod: &mut PodState,
        refused: Refused,
    ) -> Option<Refused> {
        let key = pod.record.key.clone();
        if refused.verdict.is_final() {
            pod.refuse(refused.verdict.clone());
            if !uses_node(pod) {
                self.release(node, plugins, &key);
            }
            return Some(refused);
        }
        if refused.victims.is_none() {
            node.forget_reserved(&key, Purpose::Start);
        }
        self.waits_to_start = true;
        let is_new = pod.refuse(refused.verdict.clone());
        let ends_others = refused.victims.as_ref().is_some_and(|victims| !victims.is_empty());
        (is_new || ends_others).then_some(refused)
    }

    /// Whether a pod that the node has admitted gets the requests of `desired`. If not, it waits for them. A pod that
    /// waits to begin waits with all that it needs.
    ///
    /// # Errors
    /// They do not fit, or a pod that runs never gets them.
    pub fn resize(
        &mut self,
        node: &mut Allocations,
        plugins: &Inventory,
        pod: &PodState,
        desired: &Arc<PodRecord>,
    ) -> Result<(), NotResized> {
        if !uses_node(pod) && self.settled.is_none() {
            return Ok(());
        }
        let key = &pod.record.key;
        // A pod of the node's own sources is recreated for such an edit.
        let may_be_infeasible = pod.static_cpus && desired.source.traits().is_stored;
        if may_be_infeasible && let Some(message) = infeasible(pod.record.spec(), desired.spec()) {
            self.forget_resize(node, key);
            return Err(NotResized::infeasible(message));
        }
        let result = node.resize(key, desired, plugins);
        self.waits_to_grow = result.is_err();
        if result.is_ok() {
            node.forget_resize(key);
        }
        result
    }

    /// Ends the pod's wait for room to grow.
    pub fn forget_resize(&mut self, node: &mut Allocations, key: &PodKey) {
        if std::mem::take(&mut self.waits_to_grow) {
            node.forget_resize(key);
        }
    }

    /// Frees everything except the pod's slot. While the node is short of something many pods may wait, each with a
    /// worker, and their slots bound how many.
    fn release_assigned(&mut self, node: &mut Allocations, plugins: &mut Inventory, key: &PodKey) {
        *self = Self::default();
        node.release_assigned(key, plugins);
    }

    /// Frees everything of the pod.
    pub fn release(&mut self, node: &mut Allocations, plugins: &mut Inventory, key: &PodKey) {
        *self = Self::default();
        node.release(key, plugins);
    }

    /// Whether there is nothing to decide: the pod runs on, in a version that has all it needs.
    pub fn is_settled(&self, pod: &PodState) -> bool {
        let ends = pod.ending.is_some() || pod.is_failed() || is_finished(pod);
        !ends && uses_node(pod) && self.has_version(pod)
    }

    fn has_version(&self, pod: &PodState) -> bool {
        self.settled.as_ref().is_some_and(|settled| Arc::ptr_eq(settled, &pod.record))
    }

    /// Whether the pod waits for something that another one may free.
    pub fn waits(&self) -> bool {
        self.waits_to_start || self.waits_to_grow
    }
}

fn allocate(node: &mut Allocations, plugins: &mut Inventory, pod: &PodState) -> Result<(), Refused> {
    let (record, uses) = (&pod.record, uses_node(pod));
    node.renew_slot(record);
    let slot = !uses && !node.is_in_slot(&record.key);
    let wanted = Assignment::wanted(record, &node.offer, plugins);
    let has = node.assigned.get(&record.key);
    if has.is_none() && uses && wanted.is_empty() {
        return Ok(());
    }
    // A pod that was found without an assignment uses what it names, and an edit of the requests of a running pod
    // counts at once.
    let check = match has {
        None => Check { slot, node: !uses, exclusive: !uses, requests: !uses, devices: !uses },
        Some(has) => Check {
            slot,
            node: !uses,
            exclusive: wanted.grows_exclusively(has),
            requests: !uses && wanted.requests_more(has),
            // A plugin may have registered what the scheduler alone has counted, for a pod that runs without it.
            devices: wanted.has_more_devices(has) && !(uses && record.source.traits().is_scheduled),
        },
    };
    node.allocate(&record.key, wanted, check, plugins)?;
    plugins.restore(&record.key, &record.uid);
    Ok(())
}

/// Whether a pod waits because the node did not give it what it needs.
pub(super) fn is_refusal(verdict: &PodVerdict) -> bool {
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
