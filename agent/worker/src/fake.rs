//! An in-memory executor: a node whose containers are only records. It serves the simulator, tests of faults that a
//! real runtime cannot produce on demand, and hollow nodes; everything else is tested on real containerd.
//!
//! Like a real node, the [`world`] outlives an agent. Each call takes virtual time. Depending on the seed it fails
//! before it has any effect, fails after it has taken full effect (a lost answer), or hangs until its deadline.

mod ledger;
pub mod world;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use limpet_core::adopt::{observed_exit, unknown_exit};
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::plan::{Action, KillCause};
use limpet_core::state::{CONFIG_ERROR, ContainerSlot, Instance, Life, Now, PodSandbox, PodState, StopPhase, Stopping};
use limpet_core::storage::StorageUsage;
use limpet_model::container::{ContainerId, Exit, FoundContainer, Task};
use limpet_model::image::LocalImage;
use limpet_model::object::{ObjectKind, StartValues};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::probe::ProbeKind;
use limpet_model::process::Processes;
use limpet_model::sandbox::{PodAddresses, Sandbox};
use tokio::sync::watch;

pub use ledger::FakeLedger;

use crate::executor::{Executor, ExecutorError, LoggerReport};
use limpet_telemetry::reporter::Reporter;
use world::World;

/// The deadline of a call that hangs, as for containerd (`runtimeRequestTimeout`).
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It takes effect and is answered.
    None,
    /// It fails without effect.
    Before,
    /// It takes effect, and its answer is lost.
    LostAnswer,
    /// It hangs until its deadline, without effect.
    Hang,
}

/// The executor of one run of the agent.
#[derive(Debug)]
pub struct FakeExecutor {
    world: Arc<Mutex<World>>,
    processes: world::WorldProcesses,
    /// Receives reports of images and starts, as from the real executor.
    reporter: Option<Arc<Reporter>>,
    /// There are no volume drivers.
    volume_drivers: watch::Sender<u64>,
}

impl FakeExecutor {
    /// An executor on `world`.
    pub fn new(world: Arc<Mutex<World>>) -> Self {
        Self {
            processes: world::WorldProcesses(Arc::clone(&world)),
            world,
            volume_drivers: watch::Sender::default(),
            reporter: None,
        }
    }

    /// The same, with events of images and starts.
    pub fn reporting(world: Arc<Mutex<World>>, reporter: Arc<Reporter>) -> Self {
        Self { reporter: Some(reporter), ..Self::new(world) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the virtual time of a call. Returns whether the call takes effect, and whether its answer arrives.
    async fn call(&self, name: &'static str) -> Result<bool, Failure> {
        let (delay, fault) = self.world().draw_call(name);
        let _under_way = world::UnderWay::new(&self.world);
        tokio::time::sleep(delay).await;
        let failure = |transient| Failure { reason: "Simulated", message: format!("{name} failed"), transient };
        if !self.world().is_connected() {
            return Err(failure(true));
        }
        match fault {
            Fault::None => Ok(true),
            Fault::LostAnswer => Ok(false),
            Fault::Before => Err(failure(self.world().draw_transient())),
            Fault::Hang => {
                tokio::time::sleep(CALL_TIMEOUT).await;
                Err(failure(true))
            }
        }
    }

    /// A call with the effect `act`.
    async fn done<T>(&self, name: &'static str, act: impl FnOnce(&mut World) -> T) -> Result<T, Failure> {
        let answered = self.call(name).await?;
        let result = act(&mut self.world());
        match answered {
            true => Ok(result),
            false => Err(Failure { reason: "Simulated", message: format!("{name}: answer lost"), transient: true }),
        }
    }

    async fn perform_action(&self, pod: PodState, action: Action) -> Outcome {
        let uid = pod.record.uid.clone();
        match action {
            Action::ExamineSandbox => Outcome::SandboxExamined(self.existing_sandbox(&pod.record).await),
            Action::PrepareSandbox => {
                let make = |world: &mut World| {
                    let id = world.create_sandbox(&pod.record);
                    sandbox(world, &pod.record, id)
                };
                Outcome::SandboxPrepared(self.done("PrepareSandbox", make).await)
            }
            Action::MeasureStorage => {
                let usage = StorageUsage::default();
                Outcome::StorageMeasured { usage, again: Duration::from_secs(60) }
            }
            Action::UpdateVolumes => Outcome::VolumesUpdated(self.done("UpdateVolumes", |_| ()).await),
            Action::UpdateCgroup(limits) => {
                let update = |world: &mut World| world.set_cgroup(&uid, limits);
                let updated = self.done("UpdateCgroup", update).await;
                if updated.as_ref().is_err_and(|failure| !failure.transient) {
                    self.world().refuse_limits(&uid);
                }
                Outcome::CgroupUpdated(updated)
            }
            Action::ReleaseSandbox => {
                Outcome::SandboxReleased(self.done("ReleaseSandbox", |world| world.remove_sandbox(&uid)).await)
            }
            Action::TearDown => Outcome::TornDown(self.done("TearDown", |world| world.tear_down(&pod)).await),
            Action::EnsureImage(index) => {
                let slot = &pod.containers[index];
                let can_be_pulled = self.world().script(&pod, slot).is_none_or(|script| script.can_be_pulled);
                let result = match self.done("EnsureImage", |_| image(&pod, slot)).await {
                    Ok(_) if !can_be_pulled => Err(missing_image()),
                    result => result,
                };
                if let (Some(reporter), Ok(image)) = (&self.reporter, &result) {
                    reporter.report_image_present(&pod, slot, &image.name);
                }
                Outcome::ImageEnsured {
                    index,
                    fingerprint: slot.fingerprint.clone(),
                    attempt: slot.next_attempt(),
                    result,
                }
            }
            Action::Resize(index) => {
                let slot = &pod.containers[index];
                let id = slot.instance.as_ref().map_or(ContainerId::new(""), |instance| instance.id.clone());
                let resized = self.done("Resize", |world| world.resize(&pod, slot, &id)).await;
                Outcome::Resized { index, id, result: resized.flatten() }
            }
            Action::Start(index) => self.start(&pod, index).await,
            Action::PostStart(index) => self.post_start(&pod, index).await,
            Action::Stop(index, stopping, cause) => self.stop(&pod, index, stopping, cause).await,
            Action::Probe(index, kind, _) => self.probe(&pod, index, kind).await,
            Action::RecordProbes(index, record) => {
                let id = pod.containers[index].instance.as_ref().map(|instance| instance.id.clone());
                let id = id.unwrap_or_else(|| ContainerId::new(""));
                let written = self.done("RecordProbes", |world| world.record_probes(&id, record)).await;
                Outcome::ProbesRecorded { index, id, done: written.is_ok() }
            }
            Action::Reap(index) => self.reap(&pod, index, pod.containers[index].instance.as_ref()).await,
            Action::ReapPrevious(index) => self.reap(&pod, index, pod.containers[index].previous.as_ref()).await,
            Action::Forget(index) => {
                let stale: Vec<ContainerId> =
                    pod.containers[index].stale.iter().map(|instance| instance.id.clone()).collect();
                let forgotten = self.done("Forget", |world| world.remove_containers(&stale)).await;
                Outcome::Forgotten { index, ids: forgotten.map(|()| stale).unwrap_or_default() }
            }
            Action::Discard(index) => {
                let possible_orphan = pod.containers[index].possible_orphan.clone();
                let removed = self.done("Discard", |world| world.remove_failed_start(possible_orphan.as_slice())).await;
                Outcome::OrphanRemoved { index, result: removed }
            }
        }
    }

    async fn start(&self, pod: &PodState, index: usize) -> Outcome {
        let slot = &pod.containers[index];
        let now = self.now();
        if let Some(failure) = missing_config_map(pod, slot) {
            return Outcome::Started { index, result: Err(failure) };
        }
        self.world().begin_start(pod, slot);
        let started = self.done("Start", |world| world.start(pod, slot, now)).await;
        if let (Some(reporter), Ok(_)) = (&self.reporter, &started) {
            reporter.report_start(pod, slot);
        }
        let result = started.map(|(id, task, started_at, sandbox)| {
            let version = self.world().version(&id);
            let mut instance = instance(pod, slot, id, started_at, sandbox);
            (instance.fingerprint, instance.pod_restarts) = version.unwrap_or_default();
            match task {
                Task::Running { pid } | Task::Unknown { pid } => {
                    instance.life = Life::Running { pid, process: self.processes.open(pid), stopping: None };
                }
                Task::Stopped { code, at } => instance.end(observed_exit(code, at), self.now()),
                Task::Created => {}
            }
            Box::new(instance)
        });
        Outcome::Started { index, result }
    }

    async fn stop(&self, pod: &PodState, index: usize, stopping: Stopping, cause: KillCause) -> Outcome {
        let (slot, phase) = (&pod.containers[index], stopping.phase);
        let Some(id) = slot.instance.as_ref().map(|instance| instance.id.clone()) else {
            return Outcome::Stopped { index, id: None, phase, result: Ok(None) };
        };
        if cause == KillCause::PodEnds {
            self.world().note_end(pod);
        }
        let result = match phase {
            StopPhase::PreStop => {
                self.world().begin_stop(pod, slot, cause);
                self.pre_stop(&id, stopping).await
            }
            StopPhase::Signal => {
                self.world().begin_stop(pod, slot, cause);
                let met = |world: &mut World| {
                    let met = world.is_running(&id);
                    world.terminate(&id);
                    met
                };
                let met = self.done("Terminate", met).await;
                met.map(|met| if met { None } else { self.exit_of(&id) })
            }
            StopPhase::Kill => {
                self.world().begin_kill(&id, cause);
                let again = slot.stopping().is_some_and(|before| before.phase == StopPhase::Kill);
                let killed = self.done("Kill", |world| world.kill(&id)).await;
                killed.map(|()| if again { self.exit_of(&id) } else { None })
            }
        };
        Outcome::Stopped { index, id: Some(id), phase, result }
    }

    /// Only its own timeout ends a probe that hangs.
    async fn probe(&self, pod: &PodState, index: usize, kind: ProbeKind) -> Outcome {
        let slot = &pod.containers[index];
        let id = slot.instance.as_ref().map_or(ContainerId::new(""), |instance| instance.id.clone());
        let drawn = self.world().draw_probe(pod, slot, &id, kind);
        tokio::time::sleep(drawn.takes).await;
        let passed = self.world().probed(pod, slot, &id, kind, drawn);
        Outcome::Probed { index, id, kind, passed }
    }

    async fn existing_sandbox(&self, record: &PodRecord) -> Result<Option<Arc<PodSandbox>>, Failure> {
        let find = |world: &mut World| world.sandbox(&record.uid).map(|id| sandbox(world, record, id));
        self.done("FindSandbox", find).await
    }

    /// The exit of a container whose task has stopped, or is gone.
    fn exit_of(&self, id: &ContainerId) -> Option<Exit> {
        let task = self.world().task(id);
        match task {
            None => Some(unknown_exit(self.now())),
            Some(Task::Stopped { code, at }) => Some(observed_exit(code, at)),
            Some(_) => None,
        }
    }

    async fn reap(&self, pod: &PodState, index: usize, instance: Option<&Instance>) -> Outcome {
        let Some((instance, exit)) = instance.and_then(|instance| Some((instance, instance.exit()?))) else {
            return Outcome::Forgotten { index, ids: Vec::new() };
        };
        let reaped = self.done("Reap", |world| world.reap(pod, &instance.id, exit)).await;
        Outcome::Reaped { index, id: instance.id.clone(), result: reaped.map(|()| exit.clone()) }
    }
}

impl Executor for FakeExecutor {
    fn now(&self) -> Now {
        self.world().looks += 1;
        self.world().now()
    }

    fn id_seed(&self) -> u64 {
        self.world().next_id_seed()
    }

    fn has_static_cpus(&self) -> bool {
        false
    }

    fn perform(self: Arc<Self>, pod: PodState, action: Action) -> BoxFuture<'static, Outcome> {
        async move { self.perform_action(pod, action).await }.boxed()
    }

    fn record_exit(
        self: Arc<Self>,
        pod: PodState,
        _: usize,
        instance: Instance,
        exit: Exit,
    ) -> BoxFuture<'static, Exit> {
        async move {
            // A failed write is repeated when the container is reaped.
            let _ = self.done("RecordExit", |world| world.write_exit(&pod, &instance.id, &exit)).await;
            exit
        }
        .boxed()
    }

    fn discard(self: Arc<Self>, index: usize, id: ContainerId) -> BoxFuture<'static, Outcome> {
        async move {
            let removed = self.done("Discard", |world| world.remove_containers(std::slice::from_ref(&id))).await;
            Outcome::Discarded { index, id, gone: removed.is_ok() }
        }
        .boxed()
    }

    fn task(self: Arc<Self>, id: ContainerId) -> BoxFuture<'static, Result<Option<Task>, ExecutorError>> {
        async move { self.done("Task", |world| world.task(&id)).await.map_err(|failure| ExecutorError(failure.message)) }
            .boxed()
    }

    fn keep_logger(self: Arc<Self>, _: ContainerId, _: u32, _: LoggerReport) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    fn oom_kills(&self, _: &PodRecord, _: &ContainerId) -> u64 {
        self.world().oom_kills
    }

    fn adopt_pod(&self, _: &PodRecord) {}

    fn processes(&self) -> &dyn Processes {
        &self.processes
    }

    fn list(self: Arc<Self>, _: bool) -> BoxFuture<'static, Result<Vec<FoundContainer>, ExecutorError>> {
        async move {
            // The answer reflects the state at the time of the call.
            let listed = self.world().listing();
            self.done("List", |_| listed).await.map_err(|failure| ExecutorError(failure.message))
        }
        .boxed()
    }

    fn find_sandbox(
        self: Arc<Self>,
        record: Arc<PodRecord>,
    ) -> BoxFuture<'static, Result<Option<Arc<PodSandbox>>, Failure>> {
        async move { self.existing_sandbox(&record).await }.boxed()
    }

    fn pods_with_traces(self: Arc<Self>) -> BoxFuture<'static, HashSet<PodUid>> {
        async move { self.world().traces() }.boxed()
    }

    fn remove_orphan(self: Arc<Self>, uid: PodUid) -> BoxFuture<'static, bool> {
        async move { self.done("RemoveOrphan", |world| world.remove_pod(&uid)).await.is_ok() }.boxed()
    }

    fn volume_drivers(&self) -> watch::Receiver<u64> {
        self.volume_drivers.subscribe()
    }

    fn has_unfinished_pulls(&self) -> bool {
        false
    }

    fn forget_pulls(self: Arc<Self>, _: HashSet<String>) -> BoxFuture<'static, bool> {
        async { true }.boxed()
    }
}

fn sandbox(world: &World, record: &PodRecord, id: String) -> Arc<PodSandbox> {
    let addresses = PodAddresses { ips: world.addresses(record, &id) };
    Arc::new(PodSandbox { sandbox: Sandbox { id: Some(id), ..Sandbox::default() }, addresses })
}

fn image(pod: &PodState, slot: &ContainerSlot) -> Arc<LocalImage> {
    let name = pod.container_spec(&slot.name).and_then(|spec| spec.image.as_deref()).unwrap_or_default();
    Arc::new(LocalImage {
        name: Arc::from(name),
        digest: Arc::from("sha256:0"),
        chain_id: Arc::from("sha256:1"),
        config: oci_spec::image::ImageConfiguration::default(),
        size: 1,
    })
}

/// The values of objects that a container reads at its start.
pub(crate) fn start_values(pod: &PodState, slot: &ContainerSlot) -> StartValues {
    let container = pod.container_spec(&slot.name);
    container.map(|container| StartValues::new(&pod.record, container, &pod.objects)).unwrap_or_default()
}

fn instance(
    pod: &PodState,
    slot: &ContainerSlot,
    id: ContainerId,
    started_at: Timestamp,
    sandbox: Option<String>,
) -> Instance {
    Instance {
        started_at: Some(started_at),
        pause: slot.next_pause(),
        sandbox,
        start_values: start_values(pod, slot),
        ..Instance::new(id, slot.next_attempt(), slot.fingerprint.clone())
    }
}

/// The failure of a container whose image no registry has.
fn missing_image() -> Failure {
    Failure { reason: "ErrImagePull", message: "there is no such image".to_owned(), transient: false }
}

/// The failure of a container whose variables come from an unknown ConfigMap.
fn missing_config_map(pod: &PodState, slot: &ContainerSlot) -> Option<Failure> {
    let sources = pod.container_spec(&slot.name)?.env_from.iter().flatten();
    let mut names = sources.filter_map(|source| source.config_map_ref.as_ref()).map(|config_map| &config_map.name);
    let missing = names.find(|name| pod.objects.get(ObjectKind::ConfigMap, name).is_none())?;
    Some(Failure { reason: CONFIG_ERROR, message: format!("configmap {missing:?} not found"), transient: false })
}
