//! What is known of one pod: the desired record, the sandbox, and each container's instances.
//!
//! Owned by the pod's worker, read by `plan` and by `status`. Everything here is plain data.

mod slot;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Volume};
use std::time::Instant;

use crate::backoff;
use limpet_model::image_name::normalize;
use limpet_model::object::{PodObjects, references};
use limpet_model::pod::authored::{Authored, AuthoredContainer};
use limpet_model::pod::{Fingerprint, PodDiff, PodRecord};
use limpet_model::sandbox::PodAddresses;
use limpet_model::sandbox::Sandbox;
pub use slot::{Busy, ContainerSlot, ImageState, Instance, Life, Stopping};

/// kubelet's reason when a volume cannot be put in place.
pub const FAILED_MOUNT: &str = "FailedMount";
/// kubelet's reason when a container's configuration cannot be had.
pub const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// One moment on both clocks: monotonic for pauses, wall for what people read.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For pauses and deadlines; never jumps.
    pub mono: Instant,
    /// For people and for records; may jump.
    pub wall: Timestamp,
}

/// A sandbox with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandbox {
    /// Namespaces, shm, hostname.
    pub sandbox: Sandbox,
    /// What the pod answers to.
    pub addresses: PodAddresses,
}

/// Where the pod's sandbox stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// There is none. `dirty`: something of an earlier one (an address, a pin) may be left.
    Absent {
        /// Something may have to be cleared.
        dirty: bool,
    },
    /// Being made.
    Preparing,
    /// Ready to be joined.
    Ready(Arc<PodSandbox>),
    /// Being taken down.
    Releasing,
    /// Taken down for good, with everything else of the pod.
    Gone,
}

/// Something that did not work and will be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryState {
    /// kubelet's reason: `ImagePullBackOff`, `CreateContainerError`…
    pub reason: &'static str,
    /// The sentence people read.
    pub message: String,
    /// Not before this moment.
    pub retry_at: Instant,
    /// The pause that led there.
    pub pause: Duration,
}

impl RetryState {
    /// The next trouble of the same kind, `previous` being the one before: its pause doubles.
    pub fn after(previous: Option<&Self>, reason: &'static str, message: String, now: Instant) -> Self {
        let pause = backoff::next(previous.map_or(Duration::ZERO, |retry| retry.pause));
        Self { reason, message, retry_at: now + pause, pause }
    }

    /// A trouble that is expected to pass by itself: tried again after a second.
    pub fn transient(reason: &'static str, message: String, now: Instant) -> Self {
        let pause = Duration::from_secs(1);
        Self { reason, message, retry_at: now + pause, pause: Duration::ZERO }
    }
}

/// Hash of what of the container can change in place: a change of it restarts that container alone.
fn fingerprint(authored: &Authored<'_>, name: &str) -> String {
    authored.container(name).map(AuthoredContainer::fingerprint).unwrap_or_default()
}

/// Why the pod is to end, and how gently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// When the wish came.
    pub since: Timestamp,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// What the files of a pod's volumes were written from.
#[derive(Debug, Clone)]
pub struct VolumesVersion {
    fingerprint: Fingerprint,
    objects: Arc<PodObjects>,
}

impl PartialEq for VolumesVersion {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.objects, &other.objects) || self.objects == other.objects;
        self.fingerprint == other.fingerprint && same
    }
}

/// How the volumes stand whose files come from objects or from the pod itself.
#[derive(Debug, Clone, Default)]
pub struct VolumesState {
    /// What they say now, as far as this agent knows.
    pub written: Option<VolumesVersion>,
    /// What is being written.
    pub writing: Option<VolumesVersion>,
    /// Why they do not say what they should.
    pub retry: Option<RetryState>,
}

/// Everything known of one incarnation of one pod.
#[derive(Debug, Clone)]
pub struct PodState {
    /// The newest accepted version of it.
    pub record: Arc<PodRecord>,
    /// When limpet first saw it, or its first container started.
    pub start_time: Timestamp,
    /// Its sandbox.
    pub sandbox: SandboxState,
    /// Why the sandbox is not there.
    pub retry: Option<RetryState>,
    /// The call that an action has been waiting for, for long.
    pub hanging: Option<String>,
    /// Init containers in order, then the others in order.
    pub containers: Vec<ContainerSlot>,
    /// A connection to containerd, or an agent, has ended in its life: a shim may have been started that is forgotten.
    pub outlived_connection: bool,
    /// Set once it is to end.
    pub ending: Option<Ending>,
    /// The ConfigMaps and Secrets it refers to; `None`: its source has not said yet which there are.
    pub objects: Option<Arc<PodObjects>>,
    /// Whether it refers to any.
    refers: bool,
    /// The volumes that are made of them.
    pub volumes: VolumesState,
}

impl PodState {
    /// A pod nothing runs of.
    pub fn new(record: Arc<PodRecord>, now: Timestamp) -> Self {
        let spec = record.spec();
        let authored = Authored::of(&record.manifest);
        let slot = |container: &Container, init| {
            ContainerSlot::new(&container.name, init, fingerprint(&authored, &container.name))
        };
        let mut containers: Vec<ContainerSlot> =
            spec.init_containers.iter().flatten().map(|container| slot(container, true)).collect();
        containers.extend(spec.containers.iter().map(|container| slot(container, false)));
        Self {
            refers: !references(&record).is_empty(),
            objects: None,
            volumes: VolumesState::default(),
            record,
            start_time: now,
            sandbox: SandboxState::Absent { dirty: false },
            retry: None,
            hanging: None,
            containers,
            outlived_connection: false,
            ending: None,
        }
    }

    /// Takes a version in that can be reached in place. Returns the containers it touches, and touches no other: those
    /// whose image or resources differ.
    pub fn update(&mut self, record: Arc<PodRecord>) -> Vec<usize> {
        let mut touched = Vec::new();
        let authored = Authored::of(&record.manifest);
        for name in PodDiff::between(&self.record, &record).restarts() {
            let Some(index) = self.containers.iter().position(|slot| slot.name == name) else { continue };
            let slot = &mut self.containers[index];
            slot.fingerprint = fingerprint(&authored, name);
            slot.image = ImageState::Unknown;
            slot.pull_retry = None;
            slot.retry = None;
            touched.push(index);
        }
        self.record = record;
        self.clear_pauses();
        touched
    }

    /// What failed is tried again at once: a newer version, or the pod's end, may be what it was waiting for.
    fn clear_pauses(&mut self) {
        self.retry = None;
        self.volumes.retry = None;
        // That it failed stays known: its shim may be lost.
        for retry in self.containers.iter_mut().filter_map(|slot| slot.retry.as_mut()) {
            retry.retry_at = retry.retry_at.checked_sub(retry.pause).unwrap_or(retry.retry_at);
        }
    }

    /// Takes in what there is of the objects it refers to. What failed for want of one is tried again at once.
    pub fn take_objects(&mut self, objects: Arc<PodObjects>) {
        if self.objects.as_ref().is_some_and(|known| **known == *objects) {
            return;
        }
        self.objects = Some(objects);
        self.volumes.retry = None;
        self.retry.take_if(|retry| retry.reason == FAILED_MOUNT);
        let pulls_with_secrets = self.record.spec().image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty());
        for slot in &mut self.containers {
            slot.objects_changed = true;
            slot.retry.take_if(|retry| retry.reason == CONFIG_ERROR);
            if pulls_with_secrets && matches!(slot.image, ImageState::Failed(_)) {
                slot.image = ImageState::Unknown;
                slot.pull_retry = None;
            }
        }
    }

    /// Takes in that images have come by archives: a pull of one of them that failed, or that fails, is not waited after.
    pub fn take_images(&mut self, names: &HashSet<String>) {
        let spec = self.record.spec();
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        for container in containers {
            let name = container.image.as_deref().and_then(|image| normalize(image).ok());
            if !name.is_some_and(|name| names.contains(&name)) {
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

    /// Whether it refers to objects and nobody knows yet which there are.
    pub fn awaits_objects(&self) -> bool {
        self.refers && self.objects.is_none()
    }

    /// What its volumes should be written from; `None` while that is not known.
    pub fn volumes_version(&self) -> Option<VolumesVersion> {
        let objects = match &self.objects {
            Some(objects) => Arc::clone(objects),
            None if self.refers => return None,
            None => Arc::default(),
        };
        Some(VolumesVersion { fingerprint: self.record.fingerprint, objects })
    }

    /// Whether it has volumes that say something else than they should, and nobody is writing them.
    pub fn volumes_are_due(&self) -> bool {
        let written = |volume: &Volume| {
            let Volume { config_map, secret, downward_api, projected, .. } = volume;
            config_map.is_some() || secret.is_some() || downward_api.is_some() || projected.is_some()
        };
        let wanted = self.volumes_version();
        self.volumes.writing.is_none()
            && wanted.is_some()
            && wanted != self.volumes.written
            && self.record.spec().volumes.iter().flatten().any(written)
    }

    /// Asks the pod to end. A second wish can only shorten the grace (kubelet-semantics 4.1).
    pub fn end(&mut self, grace: Duration, now: Now) {
        if self.ending.is_none() {
            self.clear_pauses();
        }
        let grace = self.ending.map_or(grace, |ending| ending.grace.min(grace));
        self.ending = Some(Ending { since: self.ending.map_or(now.wall, |ending| ending.since), grace });
    }

    /// The spec of the container called `name`.
    pub fn container_spec(&self, name: &str) -> Option<&Container> {
        let spec = self.record.spec();
        spec.init_containers.iter().flatten().chain(&spec.containers).find(|container| container.name == name)
    }
}
