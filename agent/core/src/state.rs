//! The state of one pod: the desired record, the sandbox, and each container's instances.
//!
//! It is owned by the pod's worker and read by `plan` and by `status`. Everything here is plain data.

mod cgroup;
mod ephemeral;
mod hook;
mod resize;
mod resizing;
mod restart_rule;
mod retry;
mod slot;
mod slots;
mod start_values;
mod stop;
mod volumes;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;

use crate::storage::{self, StorageWatch};
pub use cgroup::CgroupState;
pub use hook::{Hooks, PostStart};
pub use limpet_model::clock::Now;
use limpet_model::container::ContainerId;
use limpet_model::image_name::normalize;
use limpet_model::object::PodObjects;
use limpet_model::pod::authored::{Authored, AuthoredContainer};
use limpet_model::pod::images::images;
use limpet_model::pod::{PodDiff, PodRecord, Role};
use limpet_model::sandbox::{PodAddresses, Sandbox};
use limpet_model::verdict::PodVerdict;
pub use resize::{MAX_RESIZE_BACKOFF, RefusedResize, Resize, ResizeRefusal};
pub use restart_rule::{RESTART_ALL, matching_rule};
pub use retry::{Changes, RetryState};
pub use slot::{ContainerSlot, ImageState, Instance, Life, OngoingAction};
pub use slots::ContainerSlots;
pub use stop::{KILL_RETRY_INTERVAL, StopPhase, Stopping};
pub use volumes::{VolumesState, VolumesVersion};

/// kubelet's reason when a volume cannot be mounted.
pub const FAILED_MOUNT: &str = "FailedMount";
/// kubelet's reason when a volume cannot be unmounted.
pub const FAILED_UNMOUNT: &str = "FailedUnMount";
/// The reason when the image of a changed container is not pulled yet, because updates wait for a window or a cheaper link.
pub const UPDATE_HELD: &str = "UpdateHeld";
/// kubelet's reason when a container's configuration is not available.
pub const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The longest back-off after a failure to make, start or remove something, if nothing has exited. kubelet syncs a
/// pod 10 to 15 seconds after a failed sync.
pub const MAX_SYNC_BACKOFF: Duration = Duration::from_secs(15);
/// The longest back-off before volumes are written again, which is kubelet's for an operation on a volume.
pub const MAX_VOLUME_BACKOFF: Duration = Duration::from_secs(122);
/// The interval at which drivers with `requiresRepublish` publish volumes again, which is kubelet's shortest time
/// between two syncs.
pub const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);
/// The longest back-off once the node's network has changed.
pub const MAX_BACKOFF_AFTER_NETWORK_CHANGE: Duration = Duration::from_secs(1);

/// A sandbox with its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSandbox {
    /// Namespaces, shm, hostname.
    pub sandbox: Sandbox,
    /// The pod's addresses.
    pub addresses: PodAddresses,
}

/// The state of the pod's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// It does not exist. `dirty`: an earlier one may have left orphans (an address, a pin).
    Absent {
        /// Orphans may have to be removed.
        dirty: bool,
    },
    /// Containers exist, but it is not known whether their sandbox does, so it is examined again.
    Unknown,
    /// It is being examined again.
    Examining,
    /// Being prepared.
    Preparing,
    /// Ready to be joined.
    Ready(Arc<PodSandbox>),
    /// Being torn down.
    Releasing,
    /// Removed for good, with everything else of the pod.
    Gone,
}

impl SandboxState {
    /// Whether containers may run in a sandbox, as far as is known.
    pub fn may_exist(&self) -> bool {
        matches!(self, Self::Ready(_) | Self::Unknown | Self::Examining)
    }
}

/// Hash of the container's fields that can change in place. Its change restarts only that container.
fn fingerprint(authored: &Authored<'_>, name: &str) -> String {
    authored.container(name).map(AuthoredContainer::fingerprint).unwrap_or_default()
}

/// The termination of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// When it was requested.
    pub since: Timestamp,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// Everything known about one incarnation of a pod.
#[derive(Debug, Clone)]
pub struct PodState {
    /// The newest accepted version, with the resources that the node has allocated.
    pub record: Arc<PodRecord>,
    /// A seed that makes the ids of its containers differ from those of all other incarnations, on this node or
    /// another one.
    pub id_seed: u64,
    /// Whether the node's policy of processors is `static`: a container that runs keeps those that it has.
    pub static_cpus: bool,
    /// The resources of a newer version, which it does not have.
    pub refused_resize: Option<Box<RefusedResize>>,
    /// When limpet first saw it, or when its first container started.
    pub start_time: Timestamp,
    /// Its start on the monotonic clock, from which its deadline counts. Set when its worker begins.
    pub active_since: Option<Instant>,
    pub sandbox: SandboxState,
    /// The addresses of its last sandbox, primary first.
    pub last_addresses: Vec<IpAddr>,
    /// Why the sandbox is missing, or is not removed yet.
    pub retry: Option<RetryState>,
    /// What has changed since the sandbox began to be prepared or released.
    pub changed_meanwhile: Changes,
    /// The call for which an action has been waiting too long.
    pub hanging: Option<String>,
    /// Init containers and sidecars in order, then the others in order.
    pub containers: ContainerSlots,
    /// Whether it outlived a connection to containerd, or an agent, so that a forgotten shim may be running.
    pub outlived_connection: bool,
    /// Why the node refuses or ends it.
    pub verdict: Option<PodVerdict>,
    /// Whether it was admitted: the node was not short of what it needs when it arrived.
    pub admitted: bool,
    /// Whether it ended before this agent started, which only releases what is left of it. Its status stays as it was
    /// reported.
    pub is_remains: bool,
    /// The longest grace period of its containers, because the node is shutting down.
    pub shutdown_grace: Option<Duration>,
    /// Set once it is being terminated.
    pub ending: Option<Ending>,
    /// When the stop of its containers began because the pod ends. The grace period of its sidecars counts from then.
    pub ends_since: Option<Instant>,
    /// The ConfigMaps and Secrets it refers to.
    pub objects: Arc<PodObjects>,
    /// The volumes made from them.
    pub volumes: VolumesState,
    /// The limits of its cgroup.
    pub cgroup: CgroupState,
    /// The instances whose exit is known and being recorded on them.
    pub exits_being_recorded: Vec<ContainerId>,
    /// Signals that have not been answered.
    pub signals_being_sent: u32,
    /// When its use of the disk is measured; `None` if it has no limit there.
    pub storage: Option<Box<StorageWatch>>,
}

impl PodState {
    /// A pod of which nothing runs.
    pub fn new(record: Arc<PodRecord>, now: Timestamp) -> Self {
        let authored = Authored::parse(&record.manifest);
        let containers = Role::assign(record.spec())
            .map(|(name, role)| ContainerSlot::new(name, role, fingerprint(&authored, name)))
            .collect();
        let mut pod = Self {
            objects: Arc::new(PodObjects::unknown(&record)),
            volumes: VolumesState::default(),
            cgroup: CgroupState::default(),
            exits_being_recorded: Vec::new(),
            signals_being_sent: 0,
            storage: storage::measured(record.spec()).map(|_| Box::default()),
            record,
            id_seed: 0,
            static_cpus: false,
            refused_resize: None,
            start_time: now,
            active_since: None,
            sandbox: SandboxState::Absent { dirty: false },
            last_addresses: Vec::new(),
            retry: None,
            changed_meanwhile: Changes::NONE,
            hanging: None,
            containers,
            outlived_connection: false,
            verdict: None,
            admitted: false,
            is_remains: false,
            shutdown_grace: None,
            ending: None,
            ends_since: None,
        };
        for index in 0..pod.containers.len() {
            pod.containers[index].hooks =
                pod.container_spec(&pod.containers[index].name).map(Hooks::from_container).unwrap_or_default();
        }
        pod
    }

    /// A pod that is being deleted, of which an earlier agent may have left something, but no container.
    pub fn remains(record: Arc<PodRecord>, now: Timestamp) -> Self {
        Self { is_remains: true, ..Self::new(record, now) }
    }

    /// Whether the node has refused or ended it for good, so that nothing of it may run.
    pub fn is_failed(&self) -> bool {
        self.verdict.as_ref().is_some_and(PodVerdict::is_final)
    }

    /// Whether the node has ended it for a time, because a resource was low, or to make room for a critical pod.
    pub fn is_under_eviction(&self) -> bool {
        let runs_again = !self.record.source.traits().is_replaced;
        let until = |verdict: &PodVerdict| verdict.eviction.is_some() || runs_again && verdict.is_preemption();
        self.exceeded_limit() || self.verdict.as_ref().is_some_and(|verdict| verdict.is_final() && until(verdict))
    }

    /// Whether it has exceeded its own limit and should run again. A pod of the apiserver does not, because its
    /// controller makes another, nor does one that is never restarted.
    pub fn exceeded_limit(&self) -> bool {
        let is_restarted = self.record.spec().restart_policy.as_deref() != Some("Never");
        let exceeded = self.verdict.as_ref().is_some_and(PodVerdict::is_limit_eviction);
        exceeded && is_restarted && !self.record.source.traits().is_replaced
    }

    /// Whether it waits for something that the node does not have for it now.
    pub fn waits_for_node(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| !verdict.is_final())
    }

    /// Ends the pod by a decision of the node. The first decision stays.
    pub fn fail(&mut self, verdict: PodVerdict) {
        if !self.is_failed() {
            self.verdict = Some(verdict);
            self.clear_pauses();
        }
    }

    /// Records that the node does not admit the pod, which fails or waits. Returns whether that was unknown before.
    pub fn refuse(&mut self, verdict: PodVerdict) -> bool {
        let is_known = self.verdict.as_ref() == Some(&verdict);
        match verdict.is_final() {
            true => self.fail(verdict),
            false => self.verdict = Some(verdict),
        }
        !is_known
    }

    /// Ends the pod because the node is shutting down, within `grace` at most. A pod that is already ending gets no
    /// longer than that.
    pub fn shut_down(&mut self, grace: Duration, now: Now) {
        self.shutdown_grace = Some(self.shutdown_grace.map_or(grace, |before| before.min(grace)));
        match self.ending {
            Some(_) => self.end(grace, now),
            None => self.fail(PodVerdict::node_shutdown()),
        }
    }

    /// Whether the node has ended it for its shutdown.
    pub fn is_shut_down(&self) -> bool {
        self.verdict.as_ref().is_some_and(PodVerdict::is_node_shutdown)
    }

    /// Reverts the end for a shutdown: what its restart policy restarts runs again at once.
    pub fn resume(&mut self, now: Now) {
        (self.verdict, self.shutdown_grace, self.ends_since) = (None, None, None);
        self.clear_pauses();
        for instance in self.containers.iter_mut().filter_map(|slot| slot.instance.as_mut()) {
            if let Life::Exited { retry_at, .. } = &mut instance.life {
                *retry_at = (*retry_at).min(now.mono);
            }
        }
    }

    /// The verdict that is recorded on containers that exit. A pod of the node's own sources that ends for a shutdown
    /// has none, because it runs again afterwards.
    pub fn lasting_verdict(&self) -> Option<PodVerdict> {
        let runs_again = self.is_shut_down() && !self.record.source.traits().is_replaced;
        self.verdict.clone().filter(|verdict| verdict.is_final() && !runs_again)
    }

    /// Begins to count its time on the monotonic clock, unless that is done. The time that it was active before is
    /// taken from the wall clock once, here, so that a later jump of that clock ends no pod.
    pub fn count_active(&mut self, now: Now) {
        let before = Duration::try_from(now.wall.duration_since(self.start_time)).unwrap_or_default();
        self.active_since.get_or_insert_with(|| now.mono.checked_sub(before).unwrap_or(now.mono));
    }

    /// When its `activeDeadlineSeconds` have passed; `None` if it has none, or is not counted yet.
    pub fn deadline(&self) -> Option<Instant> {
        let seconds = self.record.spec().active_deadline_seconds?;
        self.active_since?.checked_add(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
    }

    /// The addresses of its sandbox, or of the last one it had. As in kubelet, a pod that has ended keeps them.
    pub fn addresses(&self) -> &[IpAddr] {
        match &self.sandbox {
            SandboxState::Ready(sandbox) => &sandbox.addresses.ips,
            _ => &self.last_addresses,
        }
    }

    /// Replaces its sandbox's state. The addresses stay known.
    pub fn set_sandbox(&mut self, sandbox: SandboxState) {
        self.last_addresses = self.addresses().to_vec();
        self.sandbox = sandbox;
    }

    /// Applies a version that can be reached in place. Returns the containers whose image or resources differ; no
    /// other is changed.
    pub fn update(&mut self, record: Arc<PodRecord>) -> Vec<usize> {
        let record = record.keeping_ephemeral(&self.record);
        let mut touched = Vec::new();
        let authored = Authored::parse(&record.manifest);
        for name in PodDiff::between(&self.record, &record).touched() {
            let Some(index) = self.containers.iter().position(|slot| slot.name == name) else { continue };
            let asked = self.asks_for_all(&self.containers[index]);
            let slot = &mut self.containers[index];
            slot.instance.iter_mut().for_each(|instance| instance.asked_before_edit |= asked);
            let before = slot.is_current().then_some(&self.record);
            slot.fingerprint = fingerprint(&authored, name);
            slot.settle_resize(before, &record);
            slot.image = ImageState::Unknown;
            slot.pull_retry = None;
            slot.retry = None;
            touched.push(index);
        }
        match storage::measured(record.spec()) {
            Some(_) => drop(self.storage.get_or_insert_default()),
            None => self.storage = None,
        }
        self.add_ephemeral(record);
        self.note_start_values();
        self.clear_pauses();
        touched
    }

    /// Retries at once what failed, because a newer version, or the pod's end, may be what it was waiting for.
    fn clear_pauses(&mut self) {
        self.retry = None;
        self.volumes.retry = None;
        (self.cgroup.retry, self.cgroup.refused) = (None, false);
        // The failure itself stays known, because its shim may be lost.
        for slot in &mut self.containers {
            slot.instance
                .iter_mut()
                .filter_map(|instance| instance.resize.as_mut())
                .for_each(|resize| resize.retry = None);
            let Some(retry) = &mut slot.retry else { continue };
            retry.retry_at = retry.retry_at.checked_sub(retry.pause).unwrap_or(retry.retry_at);
        }
    }

    /// Applies a change of the node's network. A sandbox that could not be made or removed is tried again soon, but
    /// not at once, because a failing plugin may itself be what changed the links.
    pub fn take_network_change(&mut self) {
        if self.record.host_network() {
            return;
        }
        self.changed_meanwhile = self.changed_meanwhile | Changes::NETWORK;
        if let Some(retry) = self.retry.as_mut().filter(|retry| retry.ends_with(Changes::NETWORK)) {
            retry.cap(MAX_BACKOFF_AFTER_NETWORK_CHANGE);
        }
    }

    /// Applies that a driver of volumes has registered, or is gone. What failed because it was missing is tried again
    /// at once, also if it is in progress and fails.
    pub fn take_driver_change(&mut self) {
        self.end_pauses(Changes::VOLUME_DRIVERS);
    }

    /// Retries at once what waits for one of `changes`, also if it is in progress and fails.
    fn end_pauses(&mut self, changes: Changes) {
        self.changed_meanwhile = self.changed_meanwhile | changes;
        self.retry.take_if(|retry| retry.ends_with(changes));
        self.volumes.retry.take_if(|retry| retry.ends_with(changes));
        for slot in &mut self.containers {
            slot.changed_meanwhile = slot.changed_meanwhile | changes;
            slot.retry.take_if(|retry| retry.ends_with(changes));
        }
    }

    /// Sets the objects it refers to. What failed for a missing object is retried at once.
    pub fn take_objects(&mut self, objects: Arc<PodObjects>) {
        if *self.objects == *objects {
            return;
        }
        self.objects = objects;
        self.note_start_values();
        self.end_pauses(Changes::OBJECTS);
        let pulls_with_secrets = self.record.spec().image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty());
        for slot in self.containers.iter_mut().filter(|_| pulls_with_secrets) {
            if matches!(slot.image, ImageState::Failed(_)) {
                slot.image = ImageState::Unknown;
                slot.pull_retry = None;
            }
        }
    }

    /// Applies that images were imported from archives. A failed or failing pull of one of them is retried at once.
    pub fn take_images(&mut self, names: &HashSet<String>) {
        let spec = self.record.spec();
        for container in self.record.containers() {
            let mut needed = images(spec, container).filter_map(|image| normalize(image).ok());
            if !needed.any(|name| names.contains(&name)) {
                continue;
            }
            let Some(slot) = self.containers.iter_mut().find(|slot| slot.name == container.name) else { continue };
            match slot.image {
                ImageState::Failed(_) => {
                    slot.image = ImageState::Unknown;
                    slot.pull_retry = None;
                }
                ImageState::Pulling => slot.image_came = true,
                ImageState::Unknown | ImageState::Ready { .. } => {}
            }
        }
    }

    /// Terminates the pod. A second command can only shorten the grace period (docs/kubelet.md), as does the node's
    /// verdict.
    pub fn end(&mut self, grace: Duration, now: Now) {
        if self.ending.is_none() {
            self.clear_pauses();
        }
        let of_verdict = self.verdict.as_ref().filter(|verdict| verdict.is_final()).and_then(PodVerdict::grace);
        let grace = self.ending.map(|ending| ending.grace).into_iter().chain(of_verdict).fold(grace, Duration::min);
        self.ending = Some(Ending { since: self.ending.map_or(now.wall, |ending| ending.since), grace });
    }

    /// The id of the container's next attempt. It is the same each time the attempt is repeated, until one may have
    /// run.
    pub fn next_id(&self, slot: &ContainerSlot) -> ContainerId {
        let attempt = slot.next_attempt();
        match &slot.interrupted {
            Some((interrupted, id)) if *interrupted == attempt => id.clone(),
            _ => {
                let salt = self.id_seed.wrapping_add(slot.ids_spent);
                ContainerId::derive(&self.record.uid, &slot.name, attempt, salt)
            }
        }
    }

    /// The spec of the container called `name`.
    pub fn container_spec(&self, name: &str) -> Option<&Container> {
        self.record.container(name)
    }
}
