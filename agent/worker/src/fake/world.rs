//! The state of the simulated node: its containers, sandboxes and cgroups, and how calls end.

mod calm;
mod hooks;
mod invariants;
mod inventory;
mod order;
mod places;
mod pods;
mod probes;
mod processes;
mod script;
mod shims;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use limpet_core::plan::restart_all;
use limpet_core::state::{ContainerSlot, Now, PodState};
use limpet_kinds::{Memory, WorkloadId};
use limpet_model::container::{ContainerId, ContainerIdentity, ContainerState, Exit, Recorded, Task};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::pod::Role;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::ephemeral::to_record;
use limpet_model::probe::ProbeRecord;
use limpet_model::stop_signal::StopSignal;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::Fault;
pub use calm::POD_ADDRESSES;
use hooks::HookLogs;
use invariants::Stop;
use inventory::is_running;
use order::PodEnd;
use probes::Probed;
pub use processes::live;
pub(super) use processes::{UnderWay, WorldProcesses};
pub use script::{Script, ScriptOf};

/// The result of a start: the container, its task, its start time and its sandbox.
pub(super) type Started = (ContainerId, Task, Timestamp, Option<String>);

/// The simulated node's wall clock at the beginning.
const VIRTUAL_BEGIN: Timestamp = Timestamp::constant(1_000_000_000, 0);

/// One container of the node.
#[derive(Debug)]
struct Container {
    recorded: Recorded,
    task: Option<Task>,
    /// What its shim has recorded of its exit: the code and the time.
    recorded_exit: Option<(i32, Timestamp)>,
    has_snapshot: bool,
    cpu_quota: Option<i64>,
    restart_policy: String,
    /// Whether every exit code other than 0 restarts all containers of its pod.
    restarts_all: bool,
    stop: Option<Stop>,
    /// How long after SIGTERM its process exits; `None` if it ignores SIGTERM.
    obeys: Option<Duration>,
    /// What it was started with; `None`: chance decides.
    script: Option<Script>,
    probed: Probed,
}

/// The simulated node.
pub struct World {
    rng: fastrand::Rng,
    begun: Instant,
    /// The wall clock at `begun`.
    wall_begun: Timestamp,
    /// The first of its pods' addresses; `None` if pods have no addresses.
    network: Option<Ipv4Addr>,
    /// How many of a thousand calls fail, and how many are late.
    pub fault_rate: u32,
    /// The most pods that run at a time; `None`: any number.
    pub max_pods: Option<usize>,
    /// Whether the runtime answers.
    connected: bool,
    /// Counts the periods in which neither the agent nor the runtime goes away.
    quiet: u32,
    /// Counts agents.
    life: u32,
    /// How often workers have read the time, which is at least once per wake-up.
    pub looks: u64,
    /// How many probes have run.
    pub probe_runs: u64,
    /// Where the current agent receives events.
    pub events: Option<mpsc::Sender<LifecycleEvent>>,
    containers: BTreeMap<ContainerId, Container>,
    alive: BTreeMap<u32, (ContainerId, watch::Sender<bool>)>,
    /// The UIDs of pods whose shims were killed without the runtime noticing it.
    dead_shims: BTreeSet<String>,
    /// When ending pods began to end, by UID.
    ends: BTreeMap<String, PodEnd>,
    /// The ids of the sandboxes by pod.
    sandboxes: BTreeMap<String, String>,
    /// The UIDs of pods that have volumes and logs.
    directories: BTreeSet<String>,
    next_sandbox: u32,
    next_id_seed: u64,
    /// The ids of all containers whose processes were started.
    ids_used: BTreeSet<ContainerId>,
    /// The limits of each pod's cgroup, by UID.
    cgroups: BTreeMap<String, CgroupLimits>,
    /// Pods whose limits the kernel refused last.
    refused_limits: BTreeSet<String>,
    next_pid: u32,
    /// Calls under way.
    pub under_way: usize,
    /// Whether invariants are checked. They are not in real time, where a busy machine is late.
    judged: bool,
    /// The violated invariants.
    pub violations: Vec<String>,
    /// Every step, for `--trace`.
    pub trace: Option<Vec<String>>,
    /// How many steps there have been.
    pub steps: u64,
    /// Processes that will exit by themselves: time, PID and code.
    due: Vec<(Instant, u32, i32)>,
    /// Notified when a process will exit earlier than known before.
    pub due_changed: Arc<Notify>,
    /// Whether init containers succeed and the others run forever.
    calm: bool,
    /// The logs of hooks.
    hooks: HookLogs,
    /// The containers that a user has asked to restart, by UID and name: they may run again whatever their policy.
    pub restarts_asked: BTreeSet<(String, String)>,
    /// The ephemeral containers that have been started, by UID and name: none is started again.
    ephemeral: BTreeSet<(String, String)>,
    /// The ended containers of evicted pods, by UID and name: version and exit code.
    evicted: BTreeMap<(String, String), (String, Option<i32>)>,
    /// How often all containers of each pod were to restart, by UID: the container that caused it may be removed
    /// before the others start.
    asked_restarts: BTreeMap<String, u32>,
    /// The number of agents so far.
    agents: u32,
    /// The behaviour of processes, if it is not left to the seed.
    pub behaviour: Option<Behaviour>,
    /// The behaviour of each container, if it is not left to the seed either.
    pub script_of: Option<ScriptOf>,
    /// How many processes of each container the OOM killer has killed, except first processes.
    pub oom_kills: u64,
    /// The faults of the next calls by name, before chance decides.
    pub faults: VecDeque<(&'static str, Fault)>,
    /// What the controllers of workloads have stored on the node's disk.
    pub memories: BTreeMap<WorkloadId, Memory>,
}

/// The behaviour of containers' processes in a test.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// When they exit by themselves, and with which code.
    pub exits: Option<(Duration, i32)>,
    /// How long after SIGTERM they end; `None` if they ignore it.
    pub obeys: Option<Duration>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("containers", &self.containers.len()).finish_non_exhaustive()
    }
}

impl World {
    /// A node without containers. Must be called where a runtime is.
    pub fn new(seed: u64, trace: bool) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            begun: Instant::now(),
            wall_begun: VIRTUAL_BEGIN,
            network: None,
            fault_rate: 0,
            max_pods: None,
            connected: true,
            quiet: 0,
            life: 0,
            looks: 0,
            probe_runs: 0,
            events: None,
            containers: BTreeMap::new(),
            ephemeral: BTreeSet::new(),
            evicted: BTreeMap::new(),
            asked_restarts: BTreeMap::new(),
            alive: BTreeMap::new(),
            dead_shims: BTreeSet::new(),
            ends: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            directories: BTreeSet::new(),
            next_sandbox: 0,
            next_id_seed: 0,
            ids_used: BTreeSet::new(),
            cgroups: BTreeMap::new(),
            refused_limits: BTreeSet::new(),
            next_pid: 100,
            under_way: 0,
            judged: true,
            violations: Vec::new(),
            trace: trace.then(Vec::new),
            steps: 0,
            due: Vec::new(),
            due_changed: Arc::default(),
            calm: false,
            hooks: HookLogs::new(),
            restarts_asked: BTreeSet::new(),
            agents: 0,
            behaviour: None,
            script_of: None,
            oom_kills: 0,
            faults: VecDeque::new(),
            memories: BTreeMap::new(),
        }
    }

    /// The node's time, which is virtual if the runtime's is.
    pub fn now(&self) -> Now {
        Now { mono: Instant::now().into_std(), wall: self.wall() }
    }

    fn wall(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.begun.elapsed()).unwrap_or_default();
        self.wall_begun.saturating_add(elapsed).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Moves the wall clock. The monotonic clock continues.
    pub fn set_clock_by(&mut self, step: SignedDuration) {
        self.wall_begun = self.wall_begun.saturating_add(step).unwrap_or(self.wall_begun);
    }

    /// Whether the runtime answers.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Sets whether the runtime answers.
    pub fn set_connected(&mut self, connected: bool) {
        self.connected = connected;
        self.quiet += 1;
        if connected {
            self.clean_up_shims();
        }
    }

    /// The duration of a write to disk in milliseconds.
    pub(super) fn write_time(&mut self) -> u64 {
        self.rng.u64(0..50)
    }

    /// Sets where a starting agent receives events.
    pub fn begin_agent(&mut self, events: mpsc::Sender<LifecycleEvent>) {
        self.events = Some(events);
        self.life += 1;
        self.quiet += 1;
        self.agents += 1;
    }

    /// Records a step for the trace.
    pub fn note(&mut self, step: impl FnOnce() -> String) {
        self.steps += 1;
        if let Some(trace) = &mut self.trace {
            let at = self.begun.elapsed();
            trace.push(format!("{:>10.3}s  {}", at.as_secs_f64(), step()));
        }
    }

    /// The duration of a call, and how it ends.
    pub(super) fn draw_call(&mut self, name: &'static str) -> (Duration, Fault) {
        let delay = match self.rng.u32(0..1_000) < self.fault_rate {
            true => Duration::from_millis(self.rng.u64(0..8_000)),
            false => Duration::from_millis(self.rng.u64(0..40)),
        };
        let drawn = match self.rng.u32(0..1_000) < self.fault_rate {
            false => Fault::None,
            true => *self
                .rng
                .choice(&[Fault::Before, Fault::LostAnswer, Fault::LostAnswer, Fault::Hang])
                .unwrap_or(&Fault::None),
        };
        let scripted = self.faults.iter().position(|(call, _)| *call == name);
        let fault = scripted.and_then(|at| self.faults.remove(at)).map_or(drawn, |(_, fault)| fault);
        self.note(|| format!("call {name} takes {delay:?} {fault:?}"));
        (delay, fault)
    }

    /// The seed for container ids of a pod's next incarnation.
    pub(super) fn next_id_seed(&mut self) -> u64 {
        // Far apart, like those of a real node.
        self.next_id_seed += 1 << 32;
        self.next_id_seed
    }

    /// Whether a failure is transient.
    pub(super) fn draw_transient(&mut self) -> bool {
        self.rng.bool()
    }

    /// Starts the container's next attempt, or adopts what an earlier call started.
    pub(super) fn start(&mut self, pod: &PodState, slot: &ContainerSlot, now: Now) -> Started {
        let id = pod.next_id(slot);
        if let Some(known) = self.containers.get(&id)
            && let Some(task) = known.last_task()
        {
            let started_at = known.recorded.state.started_at.unwrap_or(now.wall);
            return (id, task, started_at, known.recorded.identity.sandbox.clone());
        }
        self.check_start(pod, slot, &id);
        self.create(pod, slot);
        let pid = self.next_pid;
        self.next_pid += 1;
        if let Some(container) = self.containers.get_mut(&id) {
            container.task = Some(Task::Running { pid });
            container.recorded.state.started_at = Some(now.wall);
        }
        let restarts = restart_all::pod_restarts(pod);
        self.note(|| format!("start {} {}/{} pid {pid} restarts {restarts}", short(&id), pod.record.key, slot.name));
        self.check_places();
        self.hooks_of_started(&id, slot);
        self.check_id(&id);
        self.alive.insert(pid, (id.clone(), watch::Sender::new(true)));
        let script = self.containers.get(&id).and_then(|container| container.script);
        match script {
            Some(script) => self.follow_script(pid, script),
            None => self.draw_life(pid, slot.role == Role::Init),
        }
        (id, Task::Running { pid }, now.wall, self.sandbox(&pod.record.uid))
    }

    /// Creates the container's next attempt without a process, as an interrupted start leaves it.
    pub fn create(&mut self, pod: &PodState, slot: &ContainerSlot) -> ContainerId {
        let record = &pod.record;
        let id = pod.next_id(slot);
        let identity = ContainerIdentity {
            namespace: record.key.namespace().to_owned(),
            pod: record.key.name().to_owned(),
            uid: record.uid.to_string(),
            container: slot.name.clone(),
            init: slot.role.is_init_container(),
            attempt: slot.next_attempt(),
            source: record.source.to_string(),
            origin: record.origin.to_string(),
            fingerprint: slot.fingerprint.clone(),
            image: invariants::image_of(pod, slot),
            image_digest: String::new(),
            log_path: String::new(),
            backoff_seconds: slot.next_pause().as_secs(),
            pod_start: Some(pod.start_time),
            pod_ips: pod.addresses().to_vec(),
            stop_signal: StopSignal::default(),
            sandbox: self.sandbox(&record.uid),
            pod_restarts: restart_all::pod_restarts(pod),
            resized_at: None,
            ephemeral: record.ephemeral_of(&slot.name).and_then(to_record),
            devices: Vec::new(),
            user: None,
            start_values: super::start_values(pod, slot),
        };
        let container_policy = pod.container_spec(&slot.name).and_then(|spec| spec.restart_policy.clone());
        let rules = pod.container_spec(&slot.name).and_then(|spec| spec.restart_policy_rules.as_ref());
        let policy = container_policy.or_else(|| record.spec().restart_policy.clone()).unwrap_or_default();
        let container = Container {
            recorded: Recorded {
                identity,
                state: ContainerState::default(),
                probes: ProbeRecord::default(),
                manifest: Arc::clone(&record.manifest),
            },
            task: None,
            recorded_exit: None,
            has_snapshot: true,
            cpu_quota: invariants::container_quota(pod, slot),
            restart_policy: policy,
            restarts_all: rules.is_some(),
            stop: None,
            obeys: self.draw_obedience(),
            script: self.script(pod, slot),
            probed: Probed::default(),
        };
        self.containers.insert(id.clone(), container);
        id
    }

    /// The version with which a container was started, and how often all of its pod had been restarted before.
    pub(super) fn version(&self, id: &ContainerId) -> Option<(String, u32)> {
        let identity = &self.containers.get(id)?.recorded.identity;
        Some((identity.fingerprint.clone(), identity.pod_restarts))
    }

    pub(super) fn is_running(&self, id: &ContainerId) -> bool {
        self.containers.get(id).is_some_and(is_running)
    }

    pub(super) fn task(&self, id: &ContainerId) -> Option<Task> {
        self.containers.get(id)?.last_task()
    }

    pub(super) fn write_exit(&mut self, pod: &PodState, id: &ContainerId, exit: &Exit) {
        if let Some(container) = self.containers.get_mut(id) {
            container.recorded.state.exit.get_or_insert_with(|| exit.clone());
            container.recorded.state.verdict = pod.lasting_verdict();
        }
    }

    pub(super) fn reap(&mut self, pod: &PodState, id: &ContainerId, exit: &Exit) {
        self.write_exit(pod, id, exit);
        self.check_not_running(id, "reaped");
        if let Some(container) = self.containers.get_mut(id).filter(|container| !is_running(container)) {
            (container.task, container.has_snapshot) = (None, false);
        }
    }

    pub(super) fn remove_containers(&mut self, ids: &[ContainerId]) {
        for id in ids {
            self.check_not_running(id, "removed");
            self.containers.remove(id);
            self.hooks.remove(id);
        }
    }

    /// Removes a start whose answer was lost, with its process.
    pub(super) fn remove_failed_start(&mut self, ids: &[ContainerId]) {
        for id in ids {
            if let Some(Task::Running { pid }) = self.task(id) {
                self.exit(pid, 137);
            }
        }
        self.remove_containers(ids);
    }

    pub(super) fn tear_down(&mut self, pod: &PodState) {
        let possible_orphan: Vec<ContainerId> =
            pod.containers.iter().filter_map(|slot| slot.possible_orphan.clone()).collect();
        self.remove_failed_start(&possible_orphan);
        let instances =
            pod.containers.iter().flat_map(|slot| slot.instance.iter().chain(&slot.previous).chain(&slot.stale));
        let ids: Vec<ContainerId> = instances.map(|instance| instance.id.clone()).collect();
        self.remember_evicted(pod);
        self.remove_containers(&ids);
        self.remove_pod(&pod.record.uid);
        self.note(|| format!("torn down {} {}", pod.record.key, pod.record.uid));
    }

    /// From now on calls succeed, init containers succeed and the others run forever.
    pub fn calm_down(&mut self) {
        (self.calm, self.fault_rate) = (true, 0);
    }

    /// Reboots the machine: processes, tasks and namespaces are gone, records stay.
    pub fn reboot(&mut self) {
        self.note(|| "reboot".to_owned());
        self.events = None;
        for pid in self.running() {
            self.exit(pid, 137);
        }
        self.forget_tasks();
        self.sandboxes.clear();
        self.cgroups.clear();
        self.due.clear();
        self.dead_shims.clear();
    }
}

fn short(id: &ContainerId) -> String {
    id.as_str().chars().take(6).collect()
}
