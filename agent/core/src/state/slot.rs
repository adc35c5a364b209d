//! One container of a pod: its image, its instances, and the action in progress. Part of [`super`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::backoff;
use crate::probe::Probes;
use crate::state::{Changes, Hooks, Now, PostStart, Resize, RetryState, Stopping};
use limpet_model::container::{ContainerId, ContainerUser, Exit};
use limpet_model::image::LocalImage;
use limpet_model::object::StartValues;
use limpet_model::pod::Role;
use limpet_model::probe::ProbeKind;
use limpet_model::process::{ProcessHandle, ProcessName, Sender};
use limpet_model::stop_signal::StopSignal;

/// The state of a container's image.
#[derive(Debug, Clone, Default)]
pub enum ImageState {
    /// Not resolved yet.
    #[default]
    Unknown,
    /// Being resolved or pulled.
    Pulling,
    /// Present, and valid for the start of that attempt. With `Always` it is resolved again for each.
    Ready {
        image: Arc<LocalImage>,
        /// The attempt for which it was made ready.
        attempt: u32,
    },
    /// Not available now.
    Failed(RetryState),
}

/// Whether a container's process is running.
#[derive(Debug, Clone)]
pub enum Life {
    /// It runs.
    Running {
        /// Its process in the host's pid namespace.
        pid: u32,
        /// A reference to the process itself, if the kernel supports that.
        process: Option<Arc<dyn ProcessHandle>>,
        /// Set once it is being stopped.
        stopping: Option<Stopping>,
    },
    Exited {
        exit: Exit,
        /// When a successor may be started, if the restart policy requires one.
        retry_at: Instant,
        /// Whether its exit is recorded, and its task and snapshot are gone.
        reaped: bool,
    },
}

/// One instance of a container: one attempt to run it.
#[derive(Debug, Clone)]
pub struct Instance {
    pub id: ContainerId,
    /// How many attempts came before it.
    pub attempt: u32,
    /// Hash of its image and resources.
    pub fingerprint: String,
    pub image: String,
    /// The digest that the name resolved to.
    pub image_digest: String,
    pub log_path: PathBuf,
    /// When its process was started; `None` if it never ran.
    pub started_at: Option<Timestamp>,
    /// The back-off after its exit.
    pub pause: Duration,
    /// The number of OOM kills in it that it survived.
    pub oom_kills_survived: u64,
    /// When containerd last reported that it was out of memory.
    pub oom_reported: Option<Instant>,
    /// The last process the kernel OOM-killed in it, and when that was reported.
    pub oom_victim: Option<(ProcessName, Instant)>,
    /// The sender of the last terminating signal to its first process.
    pub signalled_by: Option<Sender>,
    pub stop_signal: StopSignal,
    /// Who its first process runs as; `None` if that was never determined, or an earlier version of limpet started
    /// it.
    pub user: Option<Arc<ContainerUser>>,
    /// The values of objects that it has read at its start.
    pub start_values: StartValues,
    /// The id of the sandbox it was started in.
    pub sandbox: Option<String>,
    /// How often all containers of its pod had been restarted before its start.
    pub pod_restarts: u32,
    /// Whether its exit required a restart of all containers before the container was edited.
    pub asked_before_edit: bool,
    /// Whether it was ended for a newer version of itself, which starts whatever the restart policy.
    pub replaced: bool,
    /// Whether it was ended by `limpet restart`, or for values that have changed, so that it starts again without a back-off.
    pub restart_asked: bool,
    /// Its `postStart` hook.
    pub post_start: PostStart,
    /// Its probes, if its container has any.
    pub probes: Option<Box<Probes>>,
    /// Its resize in place, if one is due.
    pub resize: Option<Box<Resize>>,
    /// Whether it runs.
    pub life: Life,
}

impl Instance {
    /// A running instance whose process is not known, and about which nothing else is known.
    pub fn new(id: ContainerId, attempt: u32, fingerprint: String) -> Self {
        Self {
            id,
            attempt,
            fingerprint,
            image: String::new(),
            image_digest: String::new(),
            log_path: PathBuf::new(),
            started_at: None,
            pause: Duration::ZERO,
            oom_kills_survived: 0,
            oom_reported: None,
            oom_victim: None,
            signalled_by: None,
            stop_signal: StopSignal::default(),
            user: None,
            start_values: StartValues::default(),
            sandbox: None,
            pod_restarts: 0,
            asked_before_edit: false,
            replaced: false,
            restart_asked: false,
            post_start: PostStart::Done,
            probes: None,
            resize: None,
            life: Life::Running { pid: 0, process: None, stopping: None },
        }
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.life, Life::Running { .. })
    }

    /// Whether it runs and its `postStart` hook has ended.
    pub fn is_up(&self) -> bool {
        self.is_running() && self.post_start == PostStart::Done
    }

    /// Whether it has started: it is up, and its startup probe, if it has one, has succeeded.
    pub fn is_started(&self) -> bool {
        self.is_up() && self.probes.as_ref().is_none_or(|probes| probes.is_started())
    }

    /// Whether it is ready: it has started, and its readiness probe, if it has one, succeeds.
    pub fn is_ready(&self) -> bool {
        self.is_up() && self.probes.as_ref().is_none_or(|probes| probes.is_ready())
    }

    /// The probe for which it is or was ended, and the grace period for that instead of the pod's.
    pub fn failed_probe(&self) -> Option<(ProbeKind, Option<Duration>)> {
        self.probes.as_ref()?.failed()
    }

    /// Whether the process `pid` of the container `id` is its process, as far as either is known.
    pub fn is_process(&self, id: &ContainerId, pid: u32) -> bool {
        let Life::Running { pid: known, .. } = self.life else { return false };
        self.id == *id && (known == pid || known == 0 || pid == 0)
    }

    /// How long ago its process was started, by the wall clock.
    pub fn ran_for(&self, now: Now) -> Duration {
        let started = self.started_at.map(|started| now.wall.duration_since(started));
        started.and_then(|since| Duration::try_from(since).ok()).unwrap_or_default()
    }

    /// Its exit, if it exited.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.life {
            Life::Exited { exit, .. } => Some(exit),
            Life::Running { .. } => None,
        }
    }

    /// Applies its exit. `now` determines when a successor may start.
    pub fn end(&mut self, exit: Exit, now: Now) {
        let ran = self
            .started_at
            .and_then(|started| Duration::try_from(exit.finished_at.duration_since(started)).ok())
            .unwrap_or_default();
        let since = Duration::try_from(now.wall.duration_since(exit.finished_at)).unwrap_or_default();
        let pause = if self.restart_asked { Duration::ZERO } else { backoff::after_exit(self.pause, ran) };
        // The wall clock may have jumped since then, so it never waits longer than the back-off itself.
        let retry_at = now.mono + pause.saturating_sub(since);
        self.pause = pause;
        self.life = Life::Exited { exit, retry_at, reaped: false };
    }
}

/// The action in progress on a container. There is one at a time, besides the phases of its stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OngoingAction {
    /// Its next attempt is being started, under this id.
    Starting(ContainerId),
    /// An exited instance is being cleaned up.
    Reaping,
}

/// One container of the pod.
#[derive(Debug, Clone)]
pub struct ContainerSlot {
    pub name: String,
    /// Its role in the pod.
    pub role: Role,
    pub hooks: Hooks,
    /// Hash of image and resources as desired.
    pub fingerprint: String,
    /// The values of objects that it would read at a start, if a change of them is to restart it.
    pub start_values: StartValues,
    /// The newest attempt.
    pub instance: Option<Instance>,
    /// The previous one, exited; kept for `--previous`.
    pub previous: Option<Instance>,
    /// Older instances whose records must be removed.
    pub stale: Vec<Instance>,
    pub image: ImageState,
    /// Whether the image was imported from an archive during its pull. If the pull fails, it is resolved again.
    pub image_came: bool,
    /// The last failure of its image; the next one backs off longer.
    pub pull_retry: Option<RetryState>,
    /// Why it cannot be started, signalled or cleaned up now.
    pub retry: Option<RetryState>,
    /// The action in progress.
    pub busy: Option<OngoingAction>,
    /// How often all containers of the pod had been restarted before its last start began.
    pub start_follows: u32,
    /// The id under which a failed or interrupted start may have left orphans.
    pub possible_orphan: Option<ContainerId>,
    /// Whether the removal of those orphans was begun. Until it is known to be done, no other process may have their
    /// id.
    pub discard_begun: bool,
    /// The first attempt number that is still available, also to an interrupted attempt.
    pub attempt_floor: u32,
    /// An attempt that an earlier agent began and did not run. Its repetition has the same id.
    pub interrupted: Option<(u32, ContainerId)>,
    /// How many ids the next attempt must not use, because containerd keeps them reserved, or a process may have run
    /// under them.
    pub ids_spent: u64,
    /// What has changed since its start began.
    pub changed_meanwhile: Changes,
    /// The exit of a process, perhaps of the instance whose start has not been reported yet.
    pub early_exit: Option<(ContainerId, u32, Exit)>,
}

impl ContainerSlot {
    /// A container about which nothing is known yet.
    pub fn new(name: &str, role: Role, fingerprint: String) -> Self {
        Self {
            name: name.to_owned(),
            role,
            hooks: Hooks::default(),
            fingerprint,
            start_values: StartValues::default(),
            instance: None,
            previous: None,
            stale: Vec::new(),
            image: ImageState::Unknown,
            image_came: false,
            pull_retry: None,
            retry: None,
            busy: None,
            start_follows: 0,
            possible_orphan: None,
            discard_begun: false,
            attempt_floor: 0,
            interrupted: None,
            ids_spent: 0,
            changed_meanwhile: Changes::NONE,
            early_exit: None,
        }
    }

    /// The start of which it is not known what it has left, because its answer was lost and no instance of its id was
    /// found since.
    pub fn unknown_start(&self) -> Option<&ContainerId> {
        let known = |id: &ContainerId| {
            self.instance.iter().chain(&self.previous).chain(&self.stale).any(|instance| instance.id == *id)
        };
        self.possible_orphan.as_ref().filter(|id| !known(id))
    }

    /// The attempt number of the next start.
    pub fn next_attempt(&self) -> u32 {
        let next = self.instance.as_ref().map_or(0, |instance| instance.attempt.saturating_add(1));
        next.max(self.attempt_floor)
    }

    /// Gives the next attempt an id that was not in use.
    pub fn spend_id(&mut self) {
        self.interrupted = None;
        self.ids_spent = self.ids_spent.wrapping_add(1);
    }

    /// The back-off after the exit of the next attempt.
    pub fn next_pause(&self) -> Duration {
        match &self.instance {
            None => Duration::ZERO,
            // A changed image or limit resets the back-off, as kubelet's back-off key does.
            Some(instance) if instance.fingerprint != self.fingerprint => Duration::ZERO,
            // It runs again for a new sandbox, and not because it failed.
            Some(_) if self.has_completed() => Duration::ZERO,
            Some(instance) => backoff::next(instance.pause),
        }
    }

    /// Whether it is an init container whose newest instance has succeeded, in whatever sandbox.
    pub fn has_completed(&self) -> bool {
        let exit = self.instance.as_ref().and_then(Instance::exit);
        self.role == Role::Init && exit.is_some_and(|exit| exit.code == 0)
    }

    /// Whether the newest instance runs and its `postStart` hook is not over, so that it does not count as running
    /// for others yet.
    pub fn awaits_post_start(&self) -> bool {
        let instance = self.instance.as_ref().filter(|instance| instance.is_running());
        instance.is_some_and(|instance| instance.post_start != PostStart::Done)
    }

    /// Whether the newest instance runs.
    pub fn is_running(&self) -> bool {
        self.instance.as_ref().is_some_and(Instance::is_running)
    }

    /// Whether the newest instance has started.
    pub fn is_started(&self) -> bool {
        self.instance.as_ref().is_some_and(Instance::is_started)
    }

    /// Whether the newest instance is ready.
    pub fn is_ready(&self) -> bool {
        self.instance.as_ref().is_some_and(Instance::is_ready)
    }

    /// The stop of the newest instance, if it runs and is being stopped.
    pub fn stopping(&self) -> Option<Stopping> {
        match &self.instance.as_ref()?.life {
            Life::Running { stopping, .. } => *stopping,
            Life::Exited { .. } => None,
        }
    }

    /// Whether the newest instance that runs or ran is the desired version.
    pub fn is_current(&self) -> bool {
        self.instance.as_ref().is_none_or(|instance| instance.fingerprint == self.fingerprint)
    }

    /// Whether the newest instance that runs or ran has to be replaced by the desired version, unless it has ended.
    /// As in kubelet, an init container runs to its end with its current image.
    pub fn is_outdated(&self) -> bool {
        let is_replaceable = self.role != Role::Init || self.restarts_for_resize().is_some();
        !self.is_current() && self.resize().is_none() && is_replaceable
    }

    /// Makes `instance` the newest one. The replaced one becomes the previous one, and the one before that stale.
    pub fn succeed(&mut self, instance: Instance) {
        let Some(mut old) = self.instance.replace(instance) else { return };
        old.probes = None;
        old.resize.take_if(|resize| resize.setting.is_none());
        self.stale.extend(self.previous.replace(old));
    }

    /// Every known instance, the newest first.
    pub fn instances_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.instance.iter_mut().chain(self.previous.iter_mut()).chain(self.stale.iter_mut())
    }
}
