//! One container of a pod: its image, its instances, what is under way with it. Part of [`super::state`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use std::time::Instant;

use crate::backoff;
use crate::state::{Now, RetryState};
use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;
use limpet_model::process::ProcessHandle;
use limpet_model::process::{ProcessName, Sender};

/// How a container's image stands.
#[derive(Debug, Clone, Default)]
pub enum ImageState {
    /// Not looked for yet.
    #[default]
    Unknown,
    /// Being looked for or pulled. The text tells how far it is.
    Pulling,
    /// Here, and good for the start of that attempt (`Always` looks anew for each).
    Ready {
        /// The image.
        image: Arc<LocalImage>,
        /// The attempt it was made ready for.
        attempt: u32,
    },
    /// Not to be had now.
    Failed(RetryState),
}

/// A request to end, and how far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    /// When SIGKILL follows.
    pub kill_at: Instant,
    /// When SIGKILL was sent last.
    pub killed_at: Option<Instant>,
}

/// Whether a container's process runs.
#[derive(Debug, Clone)]
pub enum Life {
    /// It runs.
    Running {
        /// Its process in the host's pid namespace.
        pid: u32,
        /// A reference to the process itself, where the kernel gives one.
        process: Option<Arc<dyn ProcessHandle>>,
        /// It was asked to end.
        stopping: Option<Stopping>,
    },
    /// It ended.
    Exited {
        /// How.
        exit: Exit,
        /// When a successor may be started, if the policy wants one.
        retry_at: Instant,
        /// Its end is written to its record, its task and its snapshot are gone.
        reaped: bool,
    },
}

/// One attempt at a container.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Its id in containerd.
    pub id: ContainerId,
    /// How many came before it.
    pub attempt: u32,
    /// Hash of image and resources it was started with.
    pub fingerprint: String,
    /// Its image's name.
    pub image: String,
    /// The digest that name meant.
    pub image_digest: String,
    /// Its log.
    pub log_path: PathBuf,
    /// When its process was started; `None`: it never ran.
    pub started_at: Option<Timestamp>,
    /// The pause its end brings.
    pub pause: Duration,
    /// How often the kernel killed something in it for want of memory that was not its end.
    pub oom_kills_survived: u64,
    /// What the kernel killed in it last for want of memory, and when that was told.
    pub oom_victim: Option<(ProcessName, Instant)>,
    /// Who sent its first process the last signal that ends.
    pub signalled_by: Option<Sender>,
    /// Whether it runs.
    pub life: Life,
}

impl Instance {
    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.life, Life::Running { .. })
    }

    /// Whether `pid`, of the container `id`, is its process, as far as either is known.
    pub fn is_process(&self, id: &ContainerId, pid: u32) -> bool {
        let Life::Running { pid: own, .. } = self.life else { return false };
        self.id == *id && (own == pid || own == 0 || pid == 0)
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.life {
            Life::Exited { exit, .. } => Some(exit),
            Life::Running { .. } => None,
        }
    }

    /// Takes its end in. `now` decides when a successor may follow.
    pub fn end(&mut self, exit: Exit, now: Now) {
        let ran = self
            .started_at
            .and_then(|started| Duration::try_from(exit.finished_at.duration_since(started)).ok())
            .unwrap_or_default();
        let since = Duration::try_from(now.wall.duration_since(exit.finished_at)).unwrap_or_default();
        let pause = backoff::after_exit(self.pause, ran);
        // The wall clock may have jumped while nobody looked: never wait longer than the pause itself.
        let retry_at = now.mono + pause.saturating_sub(since);
        self.pause = pause;
        self.life = Life::Exited { exit, retry_at, reaped: false };
    }
}

/// What is being done to a container right now; one thing at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Busy {
    /// Its next attempt is being started, under this id.
    Starting(ContainerId),
    /// A signal is on its way.
    Signalling,
    /// A dead instance is being cleared.
    Reaping,
}

/// One container of the pod.
#[derive(Debug, Clone)]
pub struct ContainerSlot {
    /// Its name.
    pub name: String,
    /// Whether it is an init container.
    pub init: bool,
    /// Hash of image and resources as desired.
    pub fingerprint: String,
    /// The newest attempt.
    pub instance: Option<Instance>,
    /// The one before it, dead; kept for `--previous`.
    pub previous: Option<Instance>,
    /// Older ones whose records are to go.
    pub stale: Vec<Instance>,
    /// Its image.
    pub image: ImageState,
    /// It came by an archive while it was being pulled: a pull that fails has missed it.
    pub image_came: bool,
    /// The last trouble with its image; a later one waits longer.
    pub pull_retry: Option<RetryState>,
    /// Why it cannot be started, signalled or cleared now.
    pub retry: Option<RetryState>,
    /// What is being done to it.
    pub busy: Option<Busy>,
    /// A try to start it failed or was cut short, and may have left something under this id.
    pub half_made: Option<ContainerId>,
    /// The first attempt that is still to be had: containerd holds the ids of those before it for nothing.
    pub attempt_floor: u32,
    /// The pod's objects changed since its start was begun.
    pub objects_changed: bool,
    /// The end of a process, perhaps of the instance whose start has not been reported yet.
    pub early_end: Option<(ContainerId, u32, Exit)>,
}

impl ContainerSlot {
    /// A container nothing is known of yet.
    pub fn new(name: &str, init: bool, fingerprint: String) -> Self {
        Self {
            name: name.to_owned(),
            init,
            fingerprint,
            instance: None,
            previous: None,
            stale: Vec::new(),
            image: ImageState::Unknown,
            image_came: false,
            pull_retry: None,
            retry: None,
            busy: None,
            half_made: None,
            attempt_floor: 0,
            objects_changed: false,
            early_end: None,
        }
    }

    /// The attempt the next start would be.
    pub fn next_attempt(&self) -> u32 {
        let next = self.instance.as_ref().map_or(0, |instance| instance.attempt.saturating_add(1));
        next.max(self.attempt_floor)
    }

    /// The pause that the end of the next attempt will bring.
    pub fn next_pause(&self) -> Duration {
        match &self.instance {
            None => Duration::ZERO,
            // A changed image or limit begins anew, as kubelet's back-off key does.
            Some(instance) if instance.fingerprint != self.fingerprint => Duration::ZERO,
            Some(instance) => backoff::next(instance.pause),
        }
    }

    /// Whether the newest instance runs.
    pub fn is_running(&self) -> bool {
        self.instance.as_ref().is_some_and(Instance::is_running)
    }

    /// Whether what runs, or ran last, is what is desired.
    pub fn is_current(&self) -> bool {
        self.instance.as_ref().is_none_or(|instance| instance.fingerprint == self.fingerprint)
    }

    /// Makes `instance` the newest one; what it replaces is kept, what that replaced is to go.
    pub fn succeed(&mut self, instance: Instance) {
        if let Some(old) = self.instance.replace(instance)
            && let Some(older) = self.previous.replace(old)
        {
            self.stale.push(older);
        }
    }

    /// Every instance that is known, the newest first.
    pub fn instances_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.instance.iter_mut().chain(self.previous.iter_mut()).chain(self.stale.iter_mut())
    }
}
