//! What is true of the simulated node, and what must never happen on it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use limpet_core::state::{ContainerSlot, Now, PodState};
use limpet_model::container::{ContainerId, ContainerIdentity, ContainerState, Exit, FoundContainer, Recorded, Task};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::pod::compute_resources::{PodLimits, cpu_quota, pod_limits};
use limpet_model::pod::qos::{CPU, limit};
use limpet_model::pod::{PodRecord, PodUid, Role};
use limpet_model::process::{EndedProcess, ProcessHandle, Processes};
use limpet_model::stop_signal::StopSignal;
use limpet_model::verdict::PodVerdict;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::{Fault, wall_at};

/// How late a SIGKILL may be.
const LATE: Duration = Duration::from_secs(1);

/// What a start brought: the container, its task, when it was started, and in which sandbox.
pub(super) type Started = (ContainerId, Task, Timestamp, Option<String>);

/// One container of the node.
#[derive(Debug)]
struct Container {
    recorded: Recorded,
    task: Option<Task>,
    has_snapshot: bool,
    cpu_quota: Option<i64>,
    restart_policy: String,
    /// Its stop, once that has begun.
    stop: Option<Stop>,
    /// How its process takes SIGTERM: after how long it exits; `None`: it ignores it.
    obeys: Option<Duration>,
}

/// A container's stop, as its pod's grace period has it.
#[derive(Debug)]
struct Stop {
    /// When SIGKILL may come at the earliest: the grace after the first stop of any agent.
    may_kill_at: Instant,
    /// When SIGKILL has to come: the grace after this agent began to stop it, unless it is disturbed meanwhile.
    must_kill_at: Instant,
    /// The undisturbed time in which the stop began.
    quiet: u32,
    killed: bool,
}

/// The simulated node.
pub struct World {
    rng: fastrand::Rng,
    begun: Instant,
    /// Of a thousand calls so many fail, and so many are late.
    pub fault_rate: u32,
    /// The runtime answers.
    connected: bool,
    /// Counts the times in which neither the agent nor the runtime goes away.
    quiet: u32,
    /// Where the agent of now hears of events.
    pub events: Option<mpsc::Sender<LifecycleEvent>>,
    containers: BTreeMap<ContainerId, Container>,
    alive: BTreeMap<u32, (ContainerId, watch::Sender<bool>)>,
    /// The ids of the sandboxes by pod.
    sandboxes: BTreeMap<String, String>,
    next_sandbox: u32,
    /// The limits of each pod's cgroup, by UID.
    cgroups: BTreeMap<String, PodLimits>,
    next_pid: u32,
    /// Calls under way.
    pub under_way: usize,
    /// What must not happen and did.
    pub violations: Vec<String>,
    /// Every step, for `--trace`.
    pub trace: Option<Vec<String>>,
    /// Processes that are to exit by themselves: when, pid, code.
    due: Vec<(Instant, u32, i32)>,
    /// Rings when a process is to exit earlier than was known.
    pub due_changed: Arc<Notify>,
    /// Init containers succeed, and the others run for ever.
    calm: bool,
    /// What processes do, where it is not left to the seed.
    pub behaviour: Option<Behaviour>,
    /// What becomes of the next calls of a name, before chance decides.
    pub faults: VecDeque<(&'static str, Fault)>,
}

/// What a test has the processes of containers do.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// After how long they exit by themselves, and with which code.
    pub exits: Option<(Duration, i32)>,
    /// After how long SIGTERM ends them; `None`: they ignore it.
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
            fault_rate: 0,
            connected: true,
            quiet: 0,
            events: None,
            containers: BTreeMap::new(),
            alive: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            next_sandbox: 0,
            cgroups: BTreeMap::new(),
            next_pid: 100,
            under_way: 0,
            violations: Vec::new(),
            trace: trace.then(Vec::new),
            due: Vec::new(),
            due_changed: Arc::default(),
            calm: false,
            behaviour: None,
            faults: VecDeque::new(),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Now {
        Now { mono: Instant::now().into_std(), wall: wall_at(self.begun) }
    }

    /// Whether the runtime answers.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// The runtime answers from now on, or does not.
    pub fn set_connected(&mut self, connected: bool) {
        self.connected = connected;
        self.quiet += 1;
    }

    /// Where an agent that starts hears of events.
    pub fn begin_agent(&mut self, events: mpsc::Sender<LifecycleEvent>) {
        self.events = Some(events);
        self.quiet += 1;
    }

    /// Notes a step.
    pub fn note(&mut self, step: impl FnOnce() -> String) {
        let at = self.begun.elapsed();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3}s  {}", at.as_secs_f64(), step()));
        }
    }

    fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    /// How long a call takes, and what becomes of it.
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

    /// Whether a failure is one that passes by itself.
    pub(super) fn draw_transient(&mut self) -> bool {
        self.rng.bool()
    }

    pub(super) fn create_sandbox(&mut self, record: &PodRecord) -> String {
        self.next_sandbox += 1;
        let next = self.next_sandbox.to_string();
        let id = self.sandboxes.entry(record.uid.to_string()).or_insert(next).clone();
        self.set_cgroup(&record.uid, pod_limits(record.spec()));
        id
    }

    /// Sets a pod's limits, which must not be below those of a container whose cgroup is there.
    pub(super) fn set_cgroup(&mut self, uid: &PodUid, limits: PodLimits) {
        self.cgroups.insert(uid.to_string(), limits);
        let of_pod = self.containers.iter().filter(|(_, one)| one.recorded.identity.uid == uid.as_str());
        let above = of_pod.filter(|(_, one)| one.task.is_some() && exceeds(one.cpu_quota, &limits));
        let above: Vec<String> = above.map(|(id, _)| short(id)).collect();
        self.note(|| format!("cgroup of {uid} {limits:?}"));
        if !above.is_empty() {
            self.violate(format!("the cgroup of {uid} is below those of {}", above.join(", ")));
        }
    }

    /// The limits of a pod's cgroup.
    pub fn cgroup(&self, uid: &PodUid) -> Option<PodLimits> {
        self.cgroups.get(uid.as_str()).copied()
    }

    pub(super) fn remove_sandbox(&mut self, uid: &PodUid) {
        self.sandboxes.remove(uid.as_str());
        self.cgroups.remove(uid.as_str());
        let in_it =
            self.containers.iter().find(|(_, one)| one.recorded.identity.uid == uid.as_str() && is_running(one));
        if let Some((id, _)) = in_it {
            let id = id.clone();
            self.violate(format!("the sandbox of {uid} is removed while {id} runs in it"));
        }
    }

    pub(super) fn sandbox(&self, uid: &PodUid) -> Option<String> {
        self.sandboxes.get(uid.as_str()).cloned()
    }

    pub(super) fn traces(&self) -> HashSet<PodUid> {
        self.sandboxes.keys().chain(self.cgroups.keys()).map(|uid| PodUid::new(uid.as_str())).collect()
    }

    /// Starts the container's next attempt, or takes over what an earlier call started.
    pub(super) fn start(&mut self, pod: &PodState, slot: &ContainerSlot, now: Now) -> Started {
        let id = ContainerId::derive(&pod.record.uid, &slot.name, slot.next_attempt());
        if let Some(known) = self.containers.get(&id)
            && let Some(task) = known.task
        {
            let started_at = known.recorded.state.started_at.unwrap_or(now.wall);
            return (id, task, started_at, known.recorded.identity.sandbox.clone());
        }
        self.check_start(pod, slot, &id);
        let pid = self.next_pid;
        self.next_pid += 1;
        let record = &pod.record;
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
            image: String::new(),
            image_digest: String::new(),
            log_path: String::new(),
            backoff_seconds: slot.next_pause().as_secs(),
            pod_start: Some(pod.start_time),
            pod_ips: pod.addresses().to_vec(),
            stop_signal: StopSignal::default(),
            sandbox: self.sandbox(&record.uid),
        };
        let state = ContainerState { started_at: Some(now.wall), ..ContainerState::default() };
        let policy = record.spec().restart_policy.clone().unwrap_or_default();
        let container = Container {
            recorded: Recorded { identity, state, manifest: Arc::clone(&record.manifest) },
            task: Some(Task::Running { pid }),
            has_snapshot: true,
            cpu_quota: container_quota(pod, slot),
            restart_policy: policy,
            stop: None,
            obeys: self.draw_obedience(),
        };
        self.note(|| format!("start {} {}/{} pid {pid}", short(&id), record.key, slot.name));
        self.containers.insert(id.clone(), container);
        self.alive.insert(pid, (id.clone(), watch::Sender::new(true)));
        self.draw_life(pid, slot.role == Role::Init);
        (id, Task::Running { pid }, now.wall, self.sandbox(&record.uid))
    }

    fn draw_obedience(&mut self) -> Option<Duration> {
        match self.behaviour {
            Some(behaviour) => behaviour.obeys,
            None => self.rng.bool().then(|| Duration::from_millis(self.rng.u64(0..3_000))),
        }
    }

    /// Some processes exit by themselves.
    fn draw_life(&mut self, pid: u32, init: bool) {
        if let Some(behaviour) = self.behaviour {
            self.due.extend(behaviour.exits.map(|(after, code)| (Instant::now() + after, pid, code)));
            return self.due_changed.notify_one();
        }
        let exits = init || (!self.calm && self.rng.u32(0..3) == 0);
        if exits {
            let after = Duration::from_millis(self.rng.u64(0..20_000));
            let code = i32::from(!self.calm && self.rng.u32(0..4) == 0);
            self.due.push((Instant::now() + after, pid, code));
            self.due_changed.notify_one();
        }
    }

    /// The agent begins to start a container: a verdict is known by then, or comes while the start is under way.
    pub(super) fn begin_start(&mut self, pod: &PodState, slot: &ContainerSlot) {
        if self.has_failed(&pod.record.uid) {
            self.violate(format!("{}/{} starts after a verdict", pod.record.key, slot.name));
        }
    }

    fn check_start(&mut self, pod: &PodState, slot: &ContainerSlot, id: &ContainerId) {
        let uid = pod.record.uid.as_str();
        let mut found = Vec::new();
        for (other, one) in self.containers.iter().filter(|(other, _)| *other != id) {
            let identity = &one.recorded.identity;
            let same_slot = identity.uid == uid && identity.container == slot.name;
            if is_running(one) && (same_slot || (identity.pod_key() == pod.record.key && identity.uid != uid)) {
                found.push(format!("{} starts beside {} of {}", short(id), short(other), pod.record.key));
            }
            let code = one.exit_code();
            let anew = slot.role == Role::Init && identity.sandbox != self.sandbox(&pod.record.uid);
            if same_slot && identity.fingerprint == slot.fingerprint && code.is_some() && !anew {
                let again = match one.restart_policy.as_str() {
                    "Never" => true,
                    "OnFailure" => code == Some(0),
                    _ => slot.role == Role::Init && code == Some(0),
                };
                if again {
                    found.push(format!("{}/{} runs again after exit {code:?}", pod.record.key, slot.name));
                }
            }
        }
        if self.cgroups.get(uid).is_none_or(|limits| exceeds(container_quota(pod, slot), limits)) {
            found.push(format!("{} starts above the cgroup of its pod", short(id)));
        }
        if slot.role == Role::Main {
            found.extend(self.not_initialized(pod, id));
        }
        if !self.sandboxes.contains_key(uid) {
            found.push(format!("{} starts without a sandbox", short(id)));
        }
        found.into_iter().for_each(|what| self.violate(what));
    }

    /// Init containers of the pod that have not succeeded in its sandbox, unless a regular container was started in it.
    fn not_initialized(&self, pod: &PodState, id: &ContainerId) -> Option<String> {
        let (uid, sandbox) = (&pod.record.uid, self.sandbox(&pod.record.uid));
        let here: Vec<&Container> = self
            .containers
            .values()
            .filter(|one| one.recorded.identity.uid == uid.as_str() && one.recorded.identity.sandbox == sandbox)
            .collect();
        let succeeded =
            |name: &str| here.iter().any(|one| one.recorded.identity.container == name && one.exit_code() == Some(0));
        let mut inits = pod.record.spec().init_containers.iter().flatten();
        let missing = inits.find(|init| !succeeded(&init.name))?;
        let began = here.iter().any(|one| !one.recorded.identity.init);
        (!began).then(|| format!("{} starts before {} has succeeded in its sandbox", short(id), missing.name))
    }

    /// The agent begins to stop a container, or tries again.
    pub(super) fn begin_stop(&mut self, id: &ContainerId, grace: Duration) {
        let quiet = self.quiet;
        let Some(one) = self.containers.get_mut(id).filter(|one| is_running(one)) else { return };
        let kill_at = Instant::now() + grace;
        match &mut one.stop {
            Some(stop) if stop.quiet == quiet => {}
            Some(stop) => (stop.must_kill_at, stop.quiet) = (kill_at, quiet),
            None => one.stop = Some(Stop { may_kill_at: kill_at, must_kill_at: kill_at, quiet, killed: false }),
        }
    }

    /// The agent is about to send SIGKILL.
    pub(super) fn begin_kill(&mut self, id: &ContainerId) {
        let (now, quiet) = (Instant::now(), self.quiet);
        let Some(one) = self.containers.get_mut(id).filter(|one| is_running(one)) else { return };
        let wrong = match &mut one.stop {
            Some(stop) if now >= stop.may_kill_at => {
                let first = !std::mem::replace(&mut stop.killed, true);
                let late = now.saturating_duration_since(stop.must_kill_at);
                (first && stop.quiet == quiet && late > LATE).then(|| format!("{late:?} after its grace is over"))
            }
            _ => Some("before its grace is over".to_owned()),
        };
        if let Some(wrong) = wrong {
            self.violate(format!("SIGKILL to {} {wrong}", short(id)));
        }
    }

    pub(super) fn terminate(&mut self, id: &ContainerId) {
        let Some(one) = self.containers.get(id) else { return };
        let obeys = one.obeys;
        if let (Some(Task::Running { pid }), Some(after)) = (one.task, obeys) {
            self.due.push((Instant::now() + after, pid, 143));
            self.due_changed.notify_one();
        }
        self.note(|| format!("SIGTERM {} obeys {obeys:?}", short(id)));
    }

    pub(super) fn kill(&mut self, id: &ContainerId) {
        if let Some(Task::Running { pid }) = self.task(id) {
            self.exit(pid, 137);
        }
    }

    /// A process exits; the runtime's event may be lost.
    pub fn exit(&mut self, pid: u32, code: i32) {
        let Some((id, alive)) = self.alive.remove(&pid) else { return };
        let at = wall_at(self.begun);
        alive.send_replace(false);
        self.note(|| format!("exit {} pid {pid} code {code}", short(&id)));
        if let Some(one) = self.containers.get_mut(&id) {
            one.task = Some(Task::Stopped { code, at });
        }
        let lost = self.rng.u32(0..1_000) < self.fault_rate;
        if let (true, false, Some(events)) = (self.connected, lost, &self.events) {
            // An agent that is gone hears of it when it reads the whole state.
            let _ = events.try_send(LifecycleEvent::Exited { id, pid, code, at });
        }
    }

    /// How many processes were started so far.
    pub fn starts(&self) -> u64 {
        u64::from(self.next_pid - 100)
    }

    /// The processes that run now.
    pub fn running(&self) -> Vec<u32> {
        self.alive.keys().copied().collect()
    }

    /// Lets everything exit that is due by now; returns when the next is due.
    pub fn exit_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due: Vec<(u32, i32)> =
            self.due.iter().filter(|(at, ..)| *at <= now).map(|(_, pid, code)| (*pid, *code)).collect();
        self.due.retain(|(at, ..)| *at > now);
        due.into_iter().for_each(|(pid, code)| self.exit(pid, code));
        self.due.iter().map(|(at, ..)| *at).min()
    }

    /// The version that a container was started with.
    pub(super) fn fingerprint(&self, id: &ContainerId) -> Option<String> {
        Some(self.containers.get(id)?.recorded.identity.fingerprint.clone())
    }

    pub(super) fn is_running(&self, id: &ContainerId) -> bool {
        self.containers.get(id).is_some_and(is_running)
    }

    pub(super) fn task(&self, id: &ContainerId) -> Option<Task> {
        self.containers.get(id)?.task
    }

    pub(super) fn write_exit(&mut self, pod: &PodState, id: &ContainerId, exit: &Exit) {
        if let Some(one) = self.containers.get_mut(id) {
            one.recorded.state.exit.get_or_insert_with(|| exit.clone());
            one.recorded.state.verdict = pod.verdict.clone().filter(PodVerdict::is_final);
        }
    }

    pub(super) fn reap(&mut self, pod: &PodState, id: &ContainerId, exit: &Exit) {
        self.write_exit(pod, id, exit);
        if let Some(one) = self.containers.get_mut(id) {
            if is_running(one) {
                let what = format!("{} is reaped while it runs", short(id));
                return self.violate(what);
            }
            (one.task, one.has_snapshot) = (None, false);
        }
    }

    pub(super) fn remove_containers(&mut self, ids: &[ContainerId]) {
        for id in ids {
            if self.containers.get(id).is_some_and(is_running) {
                self.violate(format!("{} is removed while it runs", short(id)));
            }
            self.containers.remove(id);
        }
    }

    /// A start whose answer was lost: its process ends with what it left.
    pub(super) fn remove_failed_start(&mut self, ids: &[ContainerId]) {
        for id in ids {
            if let Some(Task::Running { pid }) = self.task(id) {
                self.exit(pid, 137);
            }
        }
        self.remove_containers(ids);
    }

    pub(super) fn tear_down(&mut self, pod: &PodState) {
        let half_made: Vec<ContainerId> = pod.containers.iter().filter_map(|slot| slot.half_made.clone()).collect();
        self.remove_failed_start(&half_made);
        let instances =
            pod.containers.iter().flat_map(|slot| slot.instance.iter().chain(&slot.previous).chain(&slot.stale));
        let ids: Vec<ContainerId> = instances.map(|instance| instance.id.clone()).collect();
        self.remove_containers(&ids);
        self.remove_sandbox(&pod.record.uid);
        self.note(|| format!("torn down {} {}", pod.record.key, pod.record.uid));
    }

    pub(super) fn found(&self) -> Vec<FoundContainer> {
        let found = self.containers.iter().map(|(id, one)| FoundContainer {
            id: id.clone(),
            recorded: one.recorded.clone(),
            task: one.task,
            has_snapshot: one.has_snapshot,
        });
        found.collect()
    }

    /// From now on calls are done and answered, init containers succeed and the others run for ever.
    pub fn calm_down(&mut self) {
        (self.calm, self.fault_rate) = (true, 0);
    }

    /// The machine restarts: processes, tasks and namespaces are gone, records stay.
    pub fn reboot(&mut self) {
        self.note(|| "reboot".to_owned());
        self.events = None;
        for pid in self.running() {
            self.exit(pid, 137);
        }
        self.containers.values_mut().for_each(|one| one.task = None);
        self.sandboxes.clear();
        self.cgroups.clear();
        self.due.clear();
    }

    /// What runs now: pod UID, container, fingerprint.
    pub fn what_runs(&self) -> Vec<(String, String, String)> {
        let running = self.containers.values().filter(|one| is_running(one));
        let what = running.map(|one| {
            let identity = &one.recorded.identity;
            (identity.uid.clone(), identity.container.clone(), identity.fingerprint.clone())
        });
        what.collect()
    }

    /// The newest instance of each container of the pod: its version, and its exit code.
    pub fn newest(&self, uid: &PodUid) -> BTreeMap<String, (String, Option<i32>)> {
        let of_pod = self.containers.values().filter(|one| one.recorded.identity.uid == uid.as_str());
        let mut of_pod: Vec<&Container> = of_pod.collect();
        of_pod.sort_by_key(|one| one.recorded.identity.attempt);
        let newest = of_pod.into_iter().map(|one| {
            let identity = &one.recorded.identity;
            (identity.container.clone(), (identity.fingerprint.clone(), one.exit_code()))
        });
        newest.collect()
    }

    /// Whether a verdict is recorded on a container of the pod.
    pub fn has_failed(&self, uid: &PodUid) -> bool {
        let mut of_pod = self.containers.values().filter(|one| one.recorded.identity.uid == uid.as_str());
        of_pod.any(|one| one.recorded.state.verdict.is_some())
    }

    /// The UIDs of pods that have anything on the node.
    pub fn pods(&self) -> BTreeSet<String> {
        let containers = self.containers.values().map(|one| one.recorded.identity.uid.clone());
        containers.chain(self.sandboxes.keys().cloned()).chain(self.cgroups.keys().cloned()).collect()
    }
}

impl Container {
    fn exit_code(&self) -> Option<i32> {
        match self.task {
            Some(Task::Stopped { code, .. }) => Some(code),
            _ => self.recorded.state.exit.as_ref().map(|exit| exit.code),
        }
    }
}

/// The CPU quota of a container.
fn container_quota(pod: &PodState, slot: &ContainerSlot) -> Option<i64> {
    let resources = pod.container_spec(&slot.name)?.resources.as_ref()?;
    cpu_quota(limit(resources, CPU).milli())
}

/// Whether the kernel refuses a container's quota in a pod with these limits (cgroup v1).
fn exceeds(quota: Option<i64>, pod: &PodLimits) -> bool {
    quota.zip(pod.cpu_quota).is_some_and(|(container, pod)| container > pod)
}

fn is_running(container: &Container) -> bool {
    matches!(container.task, Some(Task::Running { .. }))
}

fn short(id: &ContainerId) -> String {
    id.as_str().chars().take(6).collect()
}

/// Counts a call as long as it is under way, however it ends.
pub(super) struct UnderWay<'a>(&'a Mutex<World>);

impl<'a> UnderWay<'a> {
    pub(super) fn new(world: &'a Mutex<World>) -> Self {
        world.lock().unwrap_or_else(PoisonError::into_inner).under_way += 1;
        Self(world)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).under_way -= 1;
    }
}

/// The processes of the simulated node.
#[derive(Debug, Clone)]
pub(super) struct WorldProcesses(pub(super) Arc<Mutex<World>>);

impl Processes for WorldProcesses {
    fn open(&self, pid: u32) -> Option<Arc<dyn ProcessHandle>> {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match world.alive.get(&pid) {
            Some((_, alive)) => Arc::new(Handle(alive.subscribe())),
            None => Arc::new(EndedProcess),
        })
    }

    fn in_container(&self, _: &PodUid, container: &ContainerId) -> Option<u32> {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        world.alive.iter().find(|(_, (id, _))| id == container).map(|(pid, _)| *pid)
    }

    fn is_in_container(&self, pid: u32, container: &ContainerId) -> bool {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        world.alive.get(&pid).is_some_and(|(id, _)| id == container)
    }
}

/// One simulated process.
#[derive(Debug)]
struct Handle(watch::Receiver<bool>);

impl ProcessHandle for Handle {
    fn is_alive(&self) -> bool {
        *self.0.borrow()
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
        let mut alive = self.0.clone();
        Box::pin(async move { alive.wait_for(|alive| !alive).await.map(drop).map_err(io::Error::other) })
    }
}
