//! Lives of a node whose pods are those of workloads: what their controllers must never do, and what they must have done
//! at the end.

mod glimpse;
mod made;
mod runs;
mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::SignedDuration;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::view::{Contents, View};
use limpet_kinds::{Memory, WorkloadId};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::node::{NodeAddresses, Pressure};
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use limpet_model::verdict::{Eviction, PodVerdict};
use limpet_worker::fake::world::World;
use limpet_worker::inbox::EvictionOrder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::agent::{Agent, NODE, pass};
use crate::run::Report;
use glimpse::Glimpse;
use made::{Focus, Made};
use runs::Runs;
use served::Served;

/// After the last fault: longer than the longest pauses of pods and of controllers together.
const SETTLE_TIME: Duration = Duration::from_secs(3_600);
/// How long the processes of Jobs run after the last fault.
const TASK_TIME: Duration = Duration::from_secs(30);
/// From the simulated clock's beginning, when limpet did not exist, to a time that is right.
const CLOCK_IS_SET: SignedDuration = SignedDuration::from_secs(900_000_000);
/// The first address of the pods.
const PODS_NETWORK: [u8; 4] = [10, 1, 0, 0];
/// The place of a Service's manifest, by the workload whose pods it selects.
const SERVICE_FILE: &str = "service-of-";
/// How often what must never be is looked for.
const GLANCE: Duration = Duration::from_millis(700);

pub(crate) fn run(seed: u64, trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut node = Node::new(seed, trace);
        node.live().await;
        node.settle().await;
        node.remove_services().await;
        Report::new(&node.world, node.begun)
    })
}

struct Node {
    rng: fastrand::Rng,
    focus: Focus,
    world: Arc<Mutex<World>>,
    agent: Option<Agent>,
    files: BTreeMap<String, Made>,
    view: View,
    begun: Instant,
    /// Until then a controller may not have taken note of the last edit, or of what runs.
    lenient_until: Instant,
    incarnations: u32,
    runs: Runs,
    served: Served,
    /// By how much the clock was set back.
    set_back: Duration,
    clock_is_set: bool,
    /// What a controller remembered was lost.
    forgot: bool,
    /// An exit may have been lost with the machine, or be that of an evicted pod.
    lost_exits: bool,
    /// What was looked at last.
    glimpse: Option<Glimpse>,
}

impl Node {
    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let focus = Focus::draw(&mut rng);
        let mut world = World::new(rng.u64(..), trace);
        world.give_addresses(PODS_NETWORK.into());
        world.fault_rate = if rng.bool() { rng.u32(0..150) } else { 0 };
        let world = Arc::new(Mutex::new(world));
        let (files, view) = (BTreeMap::new(), View::default());
        let now = Instant::now();
        let mut node = Self {
            rng,
            focus,
            world,
            agent: None,
            files,
            view,
            begun: now,
            lenient_until: now,
            incarnations: 0,
            runs: Runs::default(),
            served: Served::default(),
            set_back: Duration::ZERO,
            clock_is_set: false,
            forgot: false,
            lost_exits: false,
            glimpse: None,
        };
        if node.rng.bool() {
            node.set_clock();
        }
        node.start_agent();
        node
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn note(&self, step: String) {
        self.world().note(|| step);
    }

    async fn live(&mut self) {
        for _ in 0..self.rng.usize(4..20) {
            self.step().await;
            let pause = match self.rng.u32(0..4) {
                0 => Duration::ZERO,
                1 => Duration::from_millis(self.rng.u64(0..200)),
                2 => Duration::from_millis(self.rng.u64(0..10_000)),
                _ => Duration::from_secs(self.rng.u64(0..120)),
            };
            self.pass(pause).await;
        }
    }

    async fn step(&mut self) {
        match self.rng.u32(0..24) {
            // Without a workload the node has nothing to do.
            _ if self.files.is_empty() => self.create(),
            0..=2 => self.create(),
            3..=7 => self.edit(),
            8 => self.delete(),
            9..=11 => self.process_exits(),
            12 => self.evict().await,
            13 => self.disconnect().await,
            14..=16 => self.restart(false).await,
            17 => self.restart(true).await,
            18 => self.lose_memory().await,
            19 if self.focus == Focus::CronJobs => self.set_clock(),
            20..=22 => self.serve(),
            23 => self.refuse_rules(),
            _ => self.reboot().await,
        }
    }

    fn create(&mut self) {
        if self.files.len() < 2 {
            let name = format!("web-{}", self.rng.u32(0..3));
            if self.files.contains_key(&name) {
                return;
            }
            self.incarnations += 1;
            let made = Made::new(&mut self.rng, self.focus, self.incarnations);
            self.note(format!("create {name}: {made:?}"));
            self.files.insert(name.clone(), made);
            self.read(&name);
        }
    }

    fn edit(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let Some(name) = self.rng.choice(&names).cloned() else { return };
        if let Some(made) = self.files.get_mut(&name) {
            match self.rng.u32(0..4) {
                // Nothing of it may change but the parallelism.
                _ if made.kind == "Job" => return,
                0 => made.replicas = self.rng.u32(0..4),
                // Back to an earlier template now and then.
                1 => made.version = self.rng.u32(0..made.version + 1),
                _ => made.version += 1,
            }
            let made = made.clone();
            self.note(format!("edit {name}: {made:?}"));
        }
        self.lenient_until = self.lenient_until.max(Instant::now() + Duration::from_secs(1));
        self.read(&name);
    }

    fn delete(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let Some(name) = self.rng.choice(&names).cloned() else { return };
        self.note(format!("delete {name}"));
        self.files.remove(&name);
        self.view.remove(&Arc::from(name.as_str()));
        self.publish();
    }

    /// Adds a Service for the pods of a workload that there is or may be, or removes it.
    fn serve(&mut self) {
        let name = format!("web-{}", self.rng.u32(0..3));
        if self.served.names.contains(&name) {
            self.remove_service(&name);
            return;
        }
        self.note(format!("a Service for {name}"));
        let file: Arc<str> = format!("{SERVICE_FILE}{name}").into();
        let read = manifest::read(&Served::text(&name), &file, SourceKind::File, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&file, read, Contents::default);
        self.served.names.insert(name);
        self.publish();
    }

    fn remove_service(&mut self, name: &str) {
        self.note(format!("no Service for {name}"));
        self.view.remove(&format!("{SERVICE_FILE}{name}").into());
        self.served.names.remove(name);
        self.publish();
    }

    fn refuse_rules(&mut self) {
        let changes = self.rng.u32(1..4);
        self.note(format!("the kernel refuses {changes} changes of rules"));
        self.served.refuse(changes);
    }

    fn read(&mut self, name: &str) {
        let text = self.files[name].text(name);
        let name: Arc<str> = Arc::from(name);
        let read = manifest::read(&text, &name, SourceKind::File, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&name, read, Contents::default);
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(agent) = &self.agent {
            agent.publish(&mut self.view);
        }
    }

    fn process_exits(&mut self) {
        let code = *self.rng.choice(&[0, 1, 137]).unwrap();
        let mut world = self.world.lock().unwrap();
        let running = world.running();
        if let Some(pid) = self.rng.choice(&running) {
            world.exit(*pid, code);
        }
    }

    async fn evict(&mut self) {
        let Some(agent) = &self.agent else { return };
        let records: Vec<_> = agent.observed.load().pods.values().map(|pod| Arc::clone(&pod.record)).collect();
        let Some(record) = self.rng.choice(&records) else { return };
        self.note(format!("evict {}", record.key));
        self.lost_exits = true;
        let eviction = Eviction { pressure: Pressure::Disk, grace_seconds: 1 };
        let verdict = PodVerdict::evicted_under_pressure(eviction, "low".to_owned());
        let (done, _) = oneshot::channel();
        let order = EvictionOrder { key: record.key.clone(), uid: record.uid.clone(), verdict, done };
        agent.evictions.send(order).await.unwrap();
    }

    async fn disconnect(&mut self) {
        self.note("containerd is gone".to_owned());
        self.world().set_connected(false);
        self.send(LifecycleEvent::Disconnected);
        let away = Duration::from_millis(self.rng.u64(0..30_000));
        self.pass(away).await;
        self.note("containerd is back".to_owned());
        self.world().set_connected(true);
        self.send(LifecycleEvent::Connected);
    }

    fn send(&self, event: LifecycleEvent) {
        if let Some(events) = &self.world().events {
            events.try_send(event).unwrap();
        }
    }

    async fn restart(&mut self, orderly: bool) {
        self.note(format!("the agent ends, orderly: {orderly}"));
        if let Some(agent) = self.agent.take() {
            if orderly {
                agent.stop().await;
            } else {
                agent.kill().await;
            }
        }
        self.world().events = None;
        self.served.agent_ended();
        let away = Duration::from_millis(self.rng.u64(0..20_000));
        self.pass(away).await;
        self.start_agent();
    }

    /// The agent starts again without its database.
    async fn lose_memory(&mut self) {
        self.note("the database is lost".to_owned());
        self.forgot = true;
        self.lenient_until = Instant::now() + Duration::from_secs(600);
        self.end_agent().await;
        self.world().memories.clear();
        self.start_agent();
    }

    /// Sets the clock right, or moves it a little.
    fn set_clock(&mut self) {
        let step = match std::mem::replace(&mut self.clock_is_set, true) {
            false => CLOCK_IS_SET,
            true => SignedDuration::from_secs(self.rng.i64(-1_200..7_200)),
        };
        self.note(format!("the clock moves by {step:?}"));
        self.set_back += Duration::try_from(-step).unwrap_or_default();
        self.world().set_clock_by(step);
    }

    async fn reboot(&mut self) {
        self.lost_exits = true;
        self.end_agent().await;
        self.world().reboot();
        self.start_agent();
    }

    async fn end_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
        self.world().events = None;
        self.served.agent_ended();
    }

    fn start_agent(&mut self) {
        self.note("the agent starts".to_owned());
        // An edit may have come while no agent ran.
        self.lenient_until = self.lenient_until.max(Instant::now() + Duration::from_secs(1));
        let addresses = NodeAddresses::single([10, 0, 0, 1].into());
        self.agent = Some(Agent::serve(
            &self.world,
            &mut self.view,
            NodeNetwork { addresses, changes: 0 },
            &self.served.backend,
        ));
    }

    /// Lets time pass, and looks for what must never be.
    async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        // The step before may have changed what has to be.
        self.glimpse = None;
        while Instant::now() < end {
            pass(&self.world, GLANCE.min(end - Instant::now())).await;
            if self.sees_news() {
                self.glance();
                self.look_at_services();
            }
        }
    }

    /// Whether anything is different from when it was looked at last. Most looks of a life would see the same.
    fn sees_news(&mut self) -> bool {
        let is_lenient = Instant::now() <= self.lenient_until;
        let is_settled = self.served.is_settled();
        let changes = (self.world().steps, self.served.backend.kernel().changes);
        let glimpse = Glimpse::new(self.agent.as_ref(), changes, is_lenient);
        let is_new = !is_settled || self.glimpse.as_ref() != Some(&glimpse);
        self.glimpse = Some(glimpse);
        is_new
    }

    /// The rules of Services are those of the ready pods, whenever the agent has done what it can.
    fn look_at_services(&mut self) {
        let wrong = match &self.agent {
            None => Vec::from_iter(self.served.look_alone()),
            Some(agent) => {
                let observed = agent.observed.load();
                let desired = agent.desired.load();
                // Nobody looks for a pod that has ended.
                let knows = desired.pods.iter().all(|(key, pod)| pod.has_ended() || observed.pods.contains_key(key));
                let knows = knows && agent.node.borrow().runtime_ready;
                self.served.look(&observed, knows)
            }
        };
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// No workload has more pods than it may, and none of a template that it replaces by ending it first.
    fn glance(&mut self) {
        let twice = self.world().names_that_run_twice();
        twice.into_iter().for_each(|name| self.violate(format!("{name} runs twice at once")));
        let Some(agent) = self.agent.as_ref().filter(|_| Instant::now() > self.lenient_until) else { return };
        let desired = agent.desired.load();
        for (name, made) in &self.files {
            let pods: Vec<&Arc<PodRecord>> = desired.pods.values().filter(|pod| is_of(pod, name)).collect();
            if made.runs_to_end() {
                let wrong = self.runs.look(name, made, &pods, &self.world.lock().unwrap());
                wrong.into_iter().for_each(|what| self.violate(what));
                continue;
            }
            if made.kind == "StatefulSet" {
                // Those that are too many end one after the other.
                continue;
            }
            let most = made.pods().1;
            if pods.len() > most {
                self.violate(format!("{name} has {} pods, {most} are the most", pods.len()));
            }
            let templates: BTreeSet<&str> = pods.iter().filter_map(|pod| label(pod, "version")).collect();
            if made.ends_first() && templates.len() > 1 {
                self.violate(format!("{name} has pods of {templates:?} at once"));
            }
        }
    }

    fn violate(&self, what: String) {
        let mut world = self.world();
        world.note(|| format!("VIOLATION {what}"));
        world.violations.push(what);
    }

    async fn settle(&mut self) {
        self.note("no more faults".to_owned());
        self.served.refuse(0);
        self.world().calm_down();
        self.send(LifecycleEvent::Disconnected);
        self.send(LifecycleEvent::Connected);
        if !self.clock_is_set {
            self.set_clock();
        }
        if matches!(self.focus, Focus::Jobs | Focus::CronJobs) {
            self.finish_tasks().await;
        } else {
            pass(&self.world, SETTLE_TIME).await;
        }
        self.look_at_services();
        self.judge_services();
        let desired = self.agent.as_ref().unwrap().desired.load();
        let known: usize =
            self.files.keys().map(|name| desired.pods.values().filter(|pod| is_of(pod, name)).count()).sum();
        if known != desired.pods.len() {
            self.violate(format!("{} pods are desired, {known} are of workloads", desired.pods.len()));
        }
        let wanted: BTreeSet<String> = desired.pods.values().map(|record| record.uid.to_string()).collect();
        for uid in self.world().pods().difference(&wanted) {
            self.violate(format!("orphan: something of {uid} is left"));
        }
        let running: BTreeSet<String> = self.world().what_runs().into_iter().map(|(uid, ..)| uid).collect();
        for (name, made) in &self.files {
            let pods: Vec<&Arc<PodRecord>> = desired.pods.values().filter(|pod| is_of(pod, name)).collect();
            let up = pods.iter().filter(|pod| running.contains(pod.uid.as_str())).count();
            if made.runs_to_end() {
                self.judge_runs(name, made);
                continue;
            }
            let version_now = made.version.to_string();
            let updated = pods.iter().filter(|pod| label(pod, "version") == Some(version_now.as_str())).count();
            let replicas = made.pods().0;
            if [pods.len(), up, updated] != [replicas; 3] {
                let all = pods.len();
                self.violate(format!("{name} has {all} pods, {up} run, {updated} are of the template, not {replicas}"));
            }
        }
    }

    /// Each Service leads to all replicas of its workload.
    fn judge_services(&self) {
        let endpoints = self.served.endpoints();
        for (name, made) in
            self.files.iter().filter(|(name, made)| self.served.names.contains(*name) && !made.runs_to_end())
        {
            let (count, replicas) = (endpoints.get(name).map_or(0, BTreeSet::len), made.pods().0);
            if count != replicas {
                self.violate(format!("connections to {name} lead to {count} of its {replicas} pods"));
            }
        }
    }

    /// Nothing is left of Services that are removed.
    async fn remove_services(&mut self) {
        for name in self.served.names.clone() {
            self.remove_service(&name);
        }
        pass(&self.world, GLANCE).await;
        self.look_at_services();
    }

    /// Lets every process of a Job succeed, for as long as a life needs to settle.
    async fn finish_tasks(&mut self) {
        let end = Instant::now() + SETTLE_TIME + self.set_back;
        while Instant::now() < end {
            self.pass(TASK_TIME).await;
            let mut world = self.world.lock().unwrap();
            world.running().into_iter().for_each(|pid| world.exit(pid, 0));
        }
        self.pass(TASK_TIME).await;
    }

    fn judge_runs(&self, name: &str, made: &Made) {
        let id = |(id, _): &(&WorkloadId, &Memory)| *id.key.name == *name;
        let memory = self.world().memories.iter().find(id).map(|(_, memory)| memory.clone()).unwrap_or_default();
        if made.kind == "CronJob" {
            if !self.forgot {
                self.runs.repeated().into_iter().for_each(|what| self.violate(what));
            }
            let last = memory.cron.and_then(|cron| cron.last_schedule);
            let overdue = self.world().now().wall.saturating_sub(SignedDuration::from_mins(6)).unwrap();
            if last.is_none_or(|last| last < overdue) {
                self.violate(format!("{name} has last run at {last:?}, and it is after {overdue}"));
            }
            return;
        }
        let succeeded = self.runs.succeeded(made.incarnation, name);
        if memory.job.is_none_or(|job| job.finished.is_none()) {
            self.violate(format!("{name} has not finished, {succeeded} of {} have succeeded", made.replicas));
        }
        if !self.forgot && !self.lost_exits && succeeded != made.replicas as usize {
            self.violate(format!("{succeeded} pods of {name} have succeeded, not {}", made.replicas));
        }
    }
}

fn is_of(pod: &PodRecord, name: &str) -> bool {
    label(pod, "app") == Some(name)
}

fn label<'a>(pod: &'a PodRecord, name: &str) -> Option<&'a str> {
    pod.pod.metadata.labels.as_ref()?.get(name).map(String::as_str)
}
