//! One run: a node, the lives of its agents, what befalls them, and what must hold at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use limpet::executor::fake::FakeExecutor;
use limpet::executor::fake::world::World;
use limpet::merge_loop;
use limpet::reporter::Reporter;
use limpet::server::Health as AgentHealth;
use limpet::status::event::Events;
use limpet::status::metrics::Metrics;
use limpet::worker::WorkerContext;
use limpet::worker::supervisor::{Intake, Supervisor};
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::source::Health;
use limpet_core::source::view::{Contents, View};
use limpet_core::status::observed::Observed;
use limpet_host::network::NetworkStatus;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::source::SourceKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::manifests::Made;

const NODE: &str = "node";
/// After the last fault: longer than the longest back-off, deadline and grace together.
const SETTLE: Duration = Duration::from_secs(1_800);

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) starts: u64,
    pub(crate) virtual_seconds: u64,
}

pub(crate) fn run(seed: u64, trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut node = Node::new(seed, trace);
        node.live().await;
        node.settle().await;
        node.report()
    })
}

/// One life of the agent.
struct Agent {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    slots: Arc<Slots>,
    desired: Desired,
}

struct Node {
    rng: fastrand::Rng,
    world: Arc<Mutex<World>>,
    agent: Option<Agent>,
    /// The directory of manifests, and the view of the source that reads it.
    files: BTreeMap<String, Made>,
    view: View,
    made: u32,
    begun: Instant,
}

impl Node {
    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng.u64(..), trace);
        world.fault_rate = if rng.bool() { rng.u32(0..150) } else { 0 };
        let mut node = Self {
            rng,
            world: Arc::new(Mutex::new(world)),
            agent: None,
            files: BTreeMap::new(),
            view: View::default(),
            made: 0,
            begun: Instant::now(),
        };
        node.start_agent();
        node
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn note(&self, step: String) {
        self.world().note(|| step);
    }

    /// What befalls the node, step by step.
    async fn live(&mut self) {
        for _ in 0..self.rng.usize(4..16) {
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
        match self.rng.u32(0..20) {
            0..=4 => self.create(),
            5..=8 => self.edit(),
            9 | 10 => self.delete(),
            11..=14 => self.process_exits(),
            15 => self.disconnect().await,
            16 | 17 => self.crash().await,
            18 => self.stop_agent().await,
            _ => self.reboot().await,
        }
    }

    fn create(&mut self) {
        if self.files.len() < 3 {
            self.made += 1;
            // A name that was there before comes back now and then.
            let name = format!("pod-{}", if self.rng.bool() { self.made } else { self.rng.u32(1..self.made + 1) });
            let made = Made::new(&mut self.rng, name.clone());
            self.note(format!("create {made:?}"));
            self.files.insert(name.clone(), made);
            self.read(&name);
        }
    }

    fn edit(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let Some(name) = self.rng.choice(&names).cloned() else { return };
        if let Some(made) = self.files.get_mut(&name) {
            made.edit(&mut self.rng);
            let made = made.clone();
            self.note(format!("edit {made:?}"));
        }
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

    /// The source reads a file and publishes what it holds.
    fn read(&mut self, name: &str) {
        let text = self.files[name].text();
        let name: Arc<str> = Arc::from(name);
        let read = manifest::read(&text, &name, SourceKind::File, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&name, read, Contents::default);
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(snapshot) = self.view.settle(true, Health::Good)
            && let Some(agent) = &self.agent
        {
            agent.slots.publish(SourceKind::File, snapshot);
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

    /// containerd restarts.
    async fn disconnect(&mut self) {
        self.note("containerd is gone".to_owned());
        self.world().connected = false;
        self.tell(LifecycleEvent::Disconnected);
        let away = Duration::from_millis(self.rng.u64(0..30_000));
        self.pass(away).await;
        self.connect();
    }

    fn connect(&mut self) {
        self.note("containerd is back".to_owned());
        self.world().connected = true;
        self.tell(LifecycleEvent::Connected);
    }

    fn tell(&self, event: LifecycleEvent) {
        if let Some(events) = &self.world().events {
            events.try_send(event).unwrap();
        }
    }

    /// The agent is killed, and started again.
    async fn crash(&mut self) {
        self.note("the agent is killed".to_owned());
        self.end_agent().await;
        self.be_away().await;
        self.start_agent();
    }

    async fn stop_agent(&mut self) {
        self.note("the agent is stopped".to_owned());
        if let Some(mut agent) = self.agent.take() {
            agent.stop.cancel();
            while agent.tasks.join_next().await.is_some() {}
        }
        self.world().events = None;
        self.be_away().await;
        self.start_agent();
    }

    async fn be_away(&mut self) {
        let away = Duration::from_millis(self.rng.u64(0..20_000));
        self.pass(away).await;
    }

    async fn reboot(&mut self) {
        self.end_agent().await;
        self.world().reboot();
        self.start_agent();
    }

    async fn end_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.tasks.shutdown().await;
        }
        self.world().events = None;
    }

    fn start_agent(&mut self) {
        self.note("the agent starts".to_owned());
        let (slots, desired, stop) = (Arc::<Slots>::default(), Desired::default(), CancellationToken::new());
        let (merging, merged) = mpsc::channel(1);
        let (events, lifecycle) = mpsc::channel(1_024);
        let mut tasks = JoinSet::new();
        tasks.spawn(merge_loop::run(Arc::clone(&slots), desired.clone(), merging, stop.clone()));
        let (health, heartbeat) = AgentHealth::new();
        let (network_status, network) = watch::channel(NetworkStatus::Ready { name: "sim".to_owned() });
        let (archives, images) = watch::channel(Arc::default());
        let reporter = Reporter {
            max_pods: 110,
            runtime_endpoint: "/simulated".into(),
            node_name: NODE.to_owned(),
            node_addresses: vec![IpAddr::from([10, 0, 0, 1])],
            network: network.clone(),
            events: Events::default(),
            metrics: Metrics::new(NODE),
            observed: Observed::default(),
            health,
        };
        let context = WorkerContext {
            executor: Arc::new(FakeExecutor::new(Arc::clone(&self.world))),
            reporter: Arc::new(reporter),
            followed: Arc::default(),
        };
        let supervisor = Supervisor::new(context, vec![SourceKind::File], true, stop.clone());
        tasks.spawn(async move {
            supervisor.run(Intake { merged, lifecycle, network, images, heartbeat }).await;
            drop((network_status, archives));
        });
        if self.world().connected {
            events.try_send(LifecycleEvent::Connected).unwrap();
        }
        self.world().events = Some(events);
        slots.publish(SourceKind::File, self.view.snapshot());
        if let Some(snapshot) = self.view.settle(true, Health::Good) {
            slots.publish(SourceKind::File, snapshot);
        }
        self.agent = Some(Agent { tasks, stop, slots, desired });
    }

    /// Lets virtual time pass, in which processes exit when they are due.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let due_changed = Arc::clone(&self.world().due_changed);
        while Instant::now() < until {
            let next = self.world().exit_due().map_or(until, |next| next.min(until));
            tokio::select! {
                biased;
                () = due_changed.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// No more faults: everything comes to rest.
    async fn settle(&mut self) {
        self.note("no more faults".to_owned());
        self.world().calm_down();
        if !self.world().connected {
            self.connect();
        }
        // A reading that finds what was missed, as after a reconnection.
        self.tell(LifecycleEvent::Disconnected);
        self.tell(LifecycleEvent::Connected);
        self.pass(SETTLE).await;
        self.check();
    }

    fn check(&mut self) {
        let desired = self.agent.as_ref().unwrap().desired.load();
        let mut world = self.world.lock().unwrap();
        let mut found = Vec::new();
        let wanted: BTreeSet<String> = desired.pods.values().map(|record| record.uid.to_string()).collect();
        if desired.pods.len() != self.files.len() {
            found.push(format!("{} pods desired of {} files", desired.pods.len(), self.files.len()));
        }
        for uid in world.pods().difference(&wanted) {
            found.push(format!("orphan: something of {uid} is left"));
        }
        let running = world.what_runs();
        for record in desired.pods.values().filter(|record| record.spec().restart_policy.as_deref() == Some("Always")) {
            for container in &record.spec().containers {
                let instances =
                    running.iter().filter(|(uid, name, _)| *uid == record.uid.as_str() && *name == container.name);
                let count = instances.count();
                if count != 1 {
                    found.push(format!("{}/{} runs {count} times", record.key, container.name));
                }
            }
        }
        if world.under_way > 0 {
            found.push(format!("{} calls are under way although nothing happens", world.under_way));
        }
        for what in found {
            world.note(|| format!("VIOLATION {what}"));
            world.violations.push(what);
        }
    }

    fn report(self) -> Report {
        let mut world = self.world.lock().unwrap();
        Report {
            violations: std::mem::take(&mut world.violations),
            trace: world.trace.take().unwrap_or_default(),
            starts: world.starts(),
            virtual_seconds: self.begun.elapsed().as_secs(),
        }
    }
}
