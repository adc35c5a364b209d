//! The two nodes that the suite keeps running: the simulated one, and a real containerd with its executor.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use limpet::config::{self, RunFlags};
use limpet::executor::containerd::ContainerdExecutor;
use limpet::executor::containerd::compose::{Backends, ExecutorParts};
use limpet_containerd::container::NewContainer;
use limpet_core::outcome::{self, Failure, Outcome};
use limpet_core::plan::{Action, KillCause};
use limpet_core::state::{ImageState, Instance, Life, PodState, StopPhase, Stopping};
use limpet_core::status::observed::Observed;
use limpet_model::container::{ContainerId, ContainerIdentity, Exit, FoundContainer, Task};
use limpet_model::manifest;
use limpet_model::pod::PodUid;
use limpet_model::source::SourceKind;
use limpet_model::stop_signal::{MIN_GRACE_PERIOD, StopSignal};
use limpet_node::network::NetworkFollower;
use limpet_plugins::csi::{CsiVolumes, VolumesInUse};
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::Health;
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::reporter::Reporter;
use limpet_tests::image::V1;
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::{TestNode, wait};
use limpet_worker::executor::Executor;
use limpet_worker::fake::FakeExecutor;
use limpet_worker::fake::world::{Behaviour, World};
use serde_json::{Value, json};
use tokio::runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// The one container of every pod.
pub(crate) const MAIN: usize = 0;

/// What the process of a container does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Process {
    /// It runs, and exits with 143 on SIGTERM.
    Obeys,
    /// It runs, and ignores SIGTERM.
    Ignores,
    /// It exits with this code at once.
    Exits(i32),
}

impl Process {
    fn script(self) -> String {
        match self {
            Self::Obeys => "trap 'exit 143' TERM; echo ready; sleep 100000 & wait".to_owned(),
            Self::Ignores => "trap '' TERM; echo ready; while :; do sleep 100000; done".to_owned(),
            Self::Exits(code) => format!("exit {code}"),
        }
    }

    fn behaviour(self) -> Behaviour {
        let (exits, obeys) = match self {
            Self::Obeys => (None, Some(Duration::ZERO)),
            Self::Ignores => (None, None),
            Self::Exits(code) => (Some((Duration::ZERO, code)), None),
        };
        Behaviour { exits, obeys }
    }
}

/// What an executor works on.
enum Ground {
    Simulated(Arc<Mutex<World>>),
    Real(Box<RealNode>),
}

/// What of a real node outlives a borrow of it.
struct RealNode {
    name: String,
    executor: Arc<ContainerdExecutor>,
    cgroups: Box<dyn Fn() -> Vec<PathBuf>>,
}

/// A node with an executor, and nothing of an agent beside it.
pub(crate) struct Node {
    pub(crate) executor: Arc<dyn Executor>,
    ground: Ground,
}

/// A case of the suite.
pub(crate) type Case = for<'a> fn(&'a Node) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs `case` on the simulated node, whose clock is virtual.
pub(crate) fn on_fake(case: Case) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let world = Arc::new(Mutex::new(World::new(1, false)));
        tokio::spawn(let_processes_exit(Arc::clone(&world)));
        let executor = Arc::new(FakeExecutor::new(Arc::clone(&world)));
        case(&Node { executor, ground: Ground::Simulated(Arc::clone(&world)) }).await?;
        let world = world.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(world.violations.is_empty(), "{:?}", world.violations);
        ensure!(world.pods().is_empty(), "left on the node: {:?}", world.pods());
        Ok(())
    })
}

/// Ends processes of `world` when they are due.
async fn let_processes_exit(world: Arc<Mutex<World>>) {
    let changed = Arc::clone(&world.lock().unwrap_or_else(PoisonError::into_inner).due_changed);
    loop {
        let next = world.lock().unwrap_or_else(PoisonError::into_inner).exit_due();
        tokio::select! {
            () = changed.notified() => {}
            () = async { match next { Some(at) => sleep_until(at).await, None => std::future::pending().await } } => {}
        }
    }
}

/// Runs `case` on a real containerd.
pub(crate) fn on_containerd(node: &mut TestNode, case: Case) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let executor = Arc::new(open(node).await?);
        let images = executor.images.clone();
        // A pull waits until it is known what the archives hold.
        tokio::spawn(async move { images.import_archives(CancellationToken::new()).await });
        let cgroup = node.cgroup().to_owned();
        let real = RealNode {
            name: node.name().to_owned(),
            executor: Arc::clone(&executor),
            cgroups: Box::new(move || limpet_tests::node::cgroups_below(&cgroup)),
        };
        case(&Node { executor, ground: Ground::Real(Box::new(real)) }).await
    })
}

/// The executor as the agent composes it, from the configuration that the node's agent would run with.
async fn open(node: &TestNode) -> Result<ContainerdExecutor> {
    let flags = RunFlags { config: Some(node.agent.settings().config()), ..RunFlags::default() };
    let (config, _) = config::load(&flags)?;
    let facts = config.node_facts(node.name().to_owned());
    let backends = Backends::open(&config.executor(), &facts, VolumesInUse::default()).await;
    let reporter = Reporter {
        runtime_endpoint: config.runtime.endpoint.clone(),
        node_name: facts.name.clone(),
        network: backends.network.subscribe(),
        events: Events::default(),
        metrics: Metrics::new(&facts.name),
        observed: Observed::default(),
        health: Health::new().0,
        devices: Arc::<DevicePlugins>::default(),
    };
    let csi = CsiVolumes::new(Arc::default(), VolumesInUse::default(), &facts.name, &config.root_dir, None);
    let parts = ExecutorParts {
        csi: Arc::new(csi),
        node_network: NetworkFollower::new(config.node.ip, &facts.name).subscribe(),
        settings: config.executor(),
        node: facts,
        executable: env!("CARGO_BIN_EXE_limpet").into(),
        backends,
        device_plugins: Arc::default(),
        reporter: Arc::new(reporter),
        service_accounts: None,
        updates: Default::default(),
        throttle: Default::default(),
        service_links: Default::default(),
    };
    Ok(ContainerdExecutor::open(parts).await?)
}

impl RealNode {
    /// The calls of a start up to the task.
    async fn interrupt_start(&self, pod: &PodState) -> Result<ContainerId> {
        let (record, slot, containers) = (&pod.record, &pod.containers[MAIN], &self.executor.containers);
        let ImageState::Ready { image, .. } = &slot.image else { bail!("{:?}", slot.image) };
        let id = pod.next_id(slot);
        let lease = containers.lease(&id).await?;
        containers.prepare_rootfs(&id, &image.chain_id, &lease).await?;
        let identity = ContainerIdentity {
            namespace: record.key.namespace().to_owned(),
            pod: record.key.name().to_owned(),
            uid: record.uid.to_string(),
            container: slot.name.clone(),
            init: false,
            attempt: slot.next_attempt(),
            source: record.source.to_string(),
            origin: record.origin.to_string(),
            fingerprint: slot.fingerprint.clone(),
            image: image.name.to_string(),
            image_digest: image.digest.to_string(),
            log_path: String::new(),
            backoff_seconds: 0,
            pod_start: Some(pod.start_time),
            pod_ips: Vec::new(),
            stop_signal: StopSignal::default(),
            sandbox: None,
            pod_restarts: 0,
            resized_at: None,
            ephemeral: None,
            devices: Vec::new(),
            user: None,
            start_values: Default::default(),
        };
        let spec = b"{}".to_vec();
        let (manifest, image) = (&record.manifest, &image.name);
        let new = NewContainer { id: &id, identity: &identity, manifest, image, spec, class: None, input: false };
        containers.create(&new).await?;
        containers.release(&lease).await?;
        Ok(id)
    }
}

impl Node {
    /// A pod of one container whose processes do what `process` says; nothing of it is made yet.
    pub(crate) fn pod(&self, process: Process) -> Result<PodState> {
        self.pod_with(process, json!({}))
    }

    /// The same with more in its container.
    pub(crate) fn pod_with(&self, process: Process, more: Value) -> Result<PodState> {
        let name = match &self.ground {
            Ground::Real(real) => real.name.as_str(),
            Ground::Simulated(world) => {
                world.lock().unwrap_or_else(PoisonError::into_inner).behaviour = Some(process.behaviour());
                "node"
            }
        };
        let container = with(shell("main", &process.script()), more);
        let spec = json!({ "containers": [container] });
        let origin = Arc::from("web.yaml");
        let read = manifest::read(pod("web", spec).to_string().as_bytes(), &origin, SourceKind::File, name);
        ensure!(read.faults.is_empty(), "{:?}", read.faults);
        let record = read.pods.into_iter().next().context("no pod")?;
        Ok(PodState { id_seed: self.executor.id_seed(), ..PodState::new(record, self.executor.now().wall) })
    }

    /// A pod whose container has been started.
    pub(crate) async fn running(&self, process: Process) -> Result<PodState> {
        let mut pod = self.pod(process)?;
        self.prepared(&mut pod).await?;
        self.act(&mut pod, Action::Start(MAIN)).await?;
        if !matches!(process, Process::Exits(_)) {
            self.wait_ready(newest(&pod)?).await?;
        }
        Ok(pod)
    }

    /// Prepares everything that a start needs.
    pub(crate) async fn prepared(&self, pod: &mut PodState) -> Result<()> {
        self.act(pod, Action::PrepareSandbox).await?;
        self.act(pod, Action::EnsureImage(MAIN)).await
    }

    /// Performs `action` as a worker does, and applies its outcome; a failure is an error.
    pub(crate) async fn act(&self, pod: &mut PodState, action: Action) -> Result<()> {
        let outcome = self.perform(pod, action).await?;
        if let Some((id, exit)) = outcome::apply(pod, outcome, self.executor.now()) {
            outcome::exited(pod, &id, 0, exit, self.executor.now());
        }
        Ok(())
    }

    /// Performs `action` and returns its outcome, which may be lost.
    pub(crate) async fn perform(&self, pod: &mut PodState, action: Action) -> Result<Outcome> {
        let before = pod.clone();
        outcome::begin(pod, &action);
        let outcome = Arc::clone(&self.executor).perform(before, action).await;
        match failure(&outcome) {
            Some(failure) => Err(anyhow!("{}: {}", failure.reason, failure.message)),
            None => Ok(outcome),
        }
    }

    /// One phase of the container's stop, SIGKILL once the grace period has passed; returns the exit that its answer brings.
    /// Nothing is applied but that it is being stopped.
    pub(crate) async fn stop(&self, pod: &mut PodState, phase: StopPhase) -> Result<Option<Exit>> {
        if phase == StopPhase::Kill {
            sleep(Duration::from_secs(pod.record.grace_seconds()).max(MIN_GRACE_PERIOD)).await;
        }
        let stopping = Stopping { phase, ..Stopping::begin(Duration::ZERO, false, self.executor.now().mono) };
        match self.perform(pod, Action::Stop(MAIN, stopping, KillCause::PodEnds)).await? {
            Outcome::Stopped { result: Ok(exit), .. } => Ok(exit),
            other => bail!("{other:?}"),
        }
    }

    /// Waits until the container has exited, and applies that to `pod` as its worker does.
    pub(crate) async fn wait_exit(&self, pod: &mut PodState) -> Result<i32> {
        let id = newest(pod)?.id.clone();
        let (code, at) = self.wait_stopped(&id).await?;
        let exit = limpet_core::adopt::observed_exit(code, at);
        outcome::exited(pod, &id, 0, exit, self.executor.now());
        Ok(code)
    }

    /// Waits until the runtime knows that the container has exited.
    pub(crate) async fn wait_stopped(&self, id: &ContainerId) -> Result<(i32, jiff::Timestamp)> {
        let look = async || match Arc::clone(&self.executor).task(id.clone()).await {
            Ok(Some(Task::Stopped { code, at })) => Some((code, at)),
            _ => None,
        };
        until("the exit", look).await
    }

    /// Waits until the process of `instance` has begun to do what it is to do.
    async fn wait_ready(&self, instance: &Instance) -> Result<()> {
        if let Ground::Simulated(_) = self.ground {
            return Ok(());
        }
        let look = async || fs::read_to_string(&instance.log_path).ok().filter(|log| log.contains("ready"));
        until("the process' log", look).await.map(drop)
    }

    /// Every container of the node.
    pub(crate) async fn list(&self) -> Result<Vec<FoundContainer>> {
        Ok(Arc::clone(&self.executor).list(false).await?)
    }

    /// The only container of the node.
    pub(crate) async fn only(&self) -> Result<FoundContainer> {
        let mut containers = self.list().await?;
        ensure!(containers.len() == 1, "{containers:?}");
        containers.pop().context("no container")
    }

    /// The pods that have something on the node.
    pub(crate) async fn traces(&self) -> HashSet<PodUid> {
        Arc::clone(&self.executor).pods_with_traces().await
    }

    /// Ends the pod and checks that nothing of it is left.
    pub(crate) async fn tear_down(&self, pod: &mut PodState) -> Result<()> {
        self.act(pod, Action::TearDown).await?;
        ensure!(self.list().await?.is_empty() && self.traces().await.is_empty(), "the pod is not gone");
        Ok(())
    }

    /// Leaves the container of a start that was interrupted before its process was created.
    pub(crate) async fn interrupt_start(&self, pod: &PodState) -> Result<ContainerId> {
        match &self.ground {
            Ground::Simulated(world) => {
                Ok(world.lock().unwrap_or_else(PoisonError::into_inner).create(pod, &pod.containers[MAIN]))
            }
            Ground::Real(real) => real.interrupt_start(pod).await,
        }
    }

    /// The CPU quota of the pod's cgroup; `None`: it has none.
    pub(crate) fn cpu_quota(&self, uid: &PodUid) -> Result<Option<i64>> {
        let real = match &self.ground {
            Ground::Simulated(world) => {
                let world = world.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(world.cgroup(uid).context("no cgroup")?.cpu_quota);
            }
            Ground::Real(real) => real,
        };
        let ends = format!("pod{uid}");
        let of_pod = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().contains(&ends));
        let files = (real.cgroups)()
            .into_iter()
            .filter(of_pod)
            .flat_map(|dir| ["cpu.max", "cpu.cfs_quota_us"].map(|file| dir.join(file)));
        let text = files.filter_map(|file| fs::read_to_string(file).ok()).next().context("no cgroup of the pod")?;
        Ok(text.split_whitespace().next().and_then(|quota| quota.parse().ok()).filter(|quota| *quota > 0))
    }

    /// The CPU quota and the bytes of memory that the container's cgroup allows; the simulated node has no such files.
    pub(crate) fn limits_of(&self, id: &ContainerId) -> Result<Option<(i64, i64)>> {
        let Ground::Real(real) = &self.ground else { return Ok(None) };
        let is_named = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().contains(id.as_str()));
        let dirs: Vec<PathBuf> = (real.cgroups)().into_iter().filter(is_named).collect();
        let first = |files: [&str; 2]| {
            let paths = dirs.iter().flat_map(|dir| files.map(|file| dir.join(file)));
            let text = paths.filter_map(|path| fs::read_to_string(path).ok()).next().context("no such file")?;
            text.split_whitespace().next().context("nothing in it")?.parse::<i64>().context("no number")
        };
        Ok(Some((first(["cpu.max", "cpu.cfs_quota_us"])?, first(["memory.max", "memory.limit_in_bytes"])?)))
    }

    /// Whether the exit of a task that containerd has forgotten is known.
    pub(crate) fn shim_records_exits(&self) -> bool {
        match self.ground {
            Ground::Simulated(_) => true,
            Ground::Real(_) => limpet_tests::agent::has_limpets_shim(),
        }
    }

    /// The log files of `instance` that are there; the simulated node has none.
    pub(crate) fn has_log(&self, instance: &Instance) -> Option<bool> {
        match self.ground {
            Ground::Simulated(_) => None,
            Ground::Real(_) => Some(instance.log_path.exists()),
        }
    }
}

/// Looks until there is something, with an end.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let limit = Instant::now() + wait::patient(wait::SOON);
    loop {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        ensure!(Instant::now() < limit && !wait::interrupted(), "waited in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The newest instance of the container.
pub(crate) fn newest(pod: &PodState) -> Result<&Instance> {
    pod.containers[MAIN].instance.as_ref().context("no instance")
}

/// The process of the container as its state has it.
pub(crate) fn pid(pod: &PodState) -> Result<u32> {
    match newest(pod)?.life {
        Life::Running { pid, .. } => Ok(pid),
        Life::Exited { .. } => bail!("{:?}", newest(pod)?.life),
    }
}

/// The name of the image that pods are made of, as a Pod has it.
pub(crate) const IMAGE: &str = V1;

fn failure(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::SandboxPrepared(result) => result.as_ref().err(),
        Outcome::VolumesUpdated(result)
        | Outcome::Resized { result, .. }
        | Outcome::CgroupUpdated(result)
        | Outcome::SandboxReleased(result)
        | Outcome::TornDown(result)
        | Outcome::OrphanRemoved { result, .. } => result.as_ref().err(),
        Outcome::ImageEnsured { result, .. } => result.as_ref().err(),
        Outcome::Started { result, .. } => result.as_ref().err(),
        Outcome::IdTaken { failure, .. } => Some(failure),
        Outcome::Stopped { result, .. } => result.as_ref().err(),
        Outcome::Reaped { result, .. } => result.as_ref().err(),
        _ => None,
    }
}
