//! One run: a node, the lives of its agents, what befalls them, and what must hold at the end.

mod verdict;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use limpet_core::debug_order::DebugOrder;
use limpet_core::node_state::NodeNetwork;
use limpet_core::pod_order::{PodOrder, RestartOrder};
use limpet_core::source::view::{Contents, View};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::node::{NodeAddresses, Pressure};
use limpet_model::pod::ephemeral;
use limpet_model::source::SourceKind;
use limpet_model::verdict::{Eviction, PodVerdict};
use limpet_worker::fake::world::World;
use limpet_worker::inbox::EvictionOrder;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::agent::{Agent, NODE, pass};
use crate::manifests::Made;
use crate::places;

/// After the last fault: longer than the longest back-off, deadline and grace together.
const SETTLE_TIME: Duration = Duration::from_secs(1_800);

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) starts: u64,
    pub(crate) virtual_seconds: u64,
}

impl Report {
    /// What the world has noted of a run that began then.
    pub(crate) fn new(world: &Mutex<World>, begun: Instant) -> Self {
        let mut world = world.lock().unwrap();
        Self {
            violations: std::mem::take(&mut world.violations),
            trace: world.trace.take().unwrap_or_default(),
            starts: world.starts(),
            virtual_seconds: begun.elapsed().as_secs(),
        }
    }
}

pub(crate) fn run(seed: u64, trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut node = Node::new(seed, trace);
        node.live().await;
        node.settle().await;
        Report::new(&node.world, node.begun)
    })
}

struct Node {
    rng: fastrand::Rng,
    world: Arc<Mutex<World>>,
    agent: Option<Agent>,
    /// The directory of manifests, and the view of the source that reads it.
    files: BTreeMap<String, Made>,
    view: View,
    made: u32,
    has_address: bool,
    /// It is short of disk.
    short: bool,
    /// How often its network has changed.
    changes: u64,
    /// How many ephemeral containers were added.
    added: u32,
    begun: Instant,
}

impl Node {
    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng.u64(..), trace);
        world.fault_rate = if rng.bool() { rng.u32(0..150) } else { 0 };
        world.max_pods = places::limit(&mut rng);
        let mut node = Self {
            rng,
            world: Arc::new(Mutex::new(world)),
            agent: None,
            files: BTreeMap::new(),
            view: View::default(),
            made: 0,
            has_address: true,
            short: false,
            changes: 0,
            added: 0,
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
        match self.rng.u32(0..30) {
            0..=4 => self.create(),
            5..=8 => self.edit(),
            9 | 10 => self.delete(),
            11..=14 => self.process_exits(),
            15 => self.disconnect().await,
            16 | 17 => self.crash().await,
            18 => self.stop_agent().await,
            19 | 20 => self.network_changes(),
            21 => self.pressure_changes(),
            22 | 23 => self.evict().await,
            24 | 25 => self.debug().await,
            26 => self.restart().await,
            27 | 28 => self.kill_shims(),
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

    /// The shim of a pod is killed, or that of all pods.
    fn kill_shims(&mut self) {
        let mut world = self.world.lock().unwrap();
        let served = world.pods_with_shims();
        let serves_all = self.rng.u32(0..4) == 0;
        let Some(chosen) = self.rng.choice(&served) else { return };
        served.iter().filter(|uid| serves_all || *uid == chosen).for_each(|uid| world.kill_shim(uid));
    }

    /// A link or an address comes or goes.
    fn network_changes(&mut self) {
        if self.rng.bool() {
            self.has_address = !self.has_address;
        }
        self.note(format!("the node's network changes, address: {}", self.has_address));
        self.publish_network();
    }

    fn publish_network(&mut self) {
        self.changes += 1;
        if let Some(agent) = &self.agent {
            agent.network.send_replace(self.network());
        }
    }

    fn network(&self) -> NodeNetwork {
        let addresses =
            if self.has_address { NodeAddresses::single([10, 0, 0, 1].into()) } else { NodeAddresses::NONE };
        NodeNetwork { addresses, changes: self.changes }
    }

    /// The node gets short of disk, or is no longer.
    fn pressure_changes(&mut self) {
        self.short = !self.short;
        self.note(format!("the node is short of disk: {}", self.short));
        self.publish_pressure();
    }

    fn publish_pressure(&self) {
        if let Some(agent) = &self.agent {
            agent.pressure.send_replace(self.short.then_some(Pressure::Disk).into_iter().collect());
        }
    }

    /// A pod is to end, because the node is short of disk.
    async fn evict(&mut self) {
        self.short = true;
        self.publish_pressure();
        let Some(agent) = &self.agent else { return };
        let observed = agent.observed.load();
        let records: Vec<_> = observed.pods.values().map(|pod| Arc::clone(&pod.record)).collect();
        let Some(record) = self.rng.choice(&records) else { return };
        self.note(format!("evict {}", record.key));
        let eviction = Eviction { pressure: Pressure::Disk, grace_seconds: 1 };
        let verdict = PodVerdict::evicted_under_pressure(eviction, "low".to_owned());
        // The end is not awaited.
        let (done, _) = oneshot::channel();
        let order = EvictionOrder { key: record.key.clone(), uid: record.uid.clone(), verdict, done };
        agent.evictions.send(order).await.unwrap();
    }

    /// An ephemeral container is added to a pod.
    async fn debug(&mut self) {
        let Some(agent) = &self.agent else { return };
        let observed = agent.observed.load();
        let records: Vec<_> = observed.pods.values().map(|pod| Arc::clone(&pod.record)).collect();
        let Some(record) = self.rng.choice(&records) else { return };
        self.added += 1;
        let mut container = json!({ "name": format!("debug-{}", self.added), "image": "debug:1" });
        if self.rng.bool() {
            container["targetContainerName"] = json!(record.spec().containers[0].name);
        }
        let container = Box::new(ephemeral::read(&container).unwrap());
        self.note(format!("debug {} with {}", record.key, container.name));
        // The answer is not awaited.
        let (done, _) = oneshot::channel();
        let order = DebugOrder { key: record.key.clone(), container, done };
        agent.orders_of_users.send(PodOrder::Debug(order)).await.unwrap();
    }

    /// A user restarts a pod, or its first container.
    async fn restart(&mut self) {
        let Some(agent) = &self.agent else { return };
        let observed = agent.observed.load();
        let records: Vec<_> = observed.pods.values().map(|pod| Arc::clone(&pod.record)).collect();
        let Some(record) = self.rng.choice(&records) else { return };
        let container = self.rng.bool().then(|| record.spec().containers[0].name.clone());
        self.note(format!("restart {} {container:?}", record.key));
        let names = record.spec().containers.iter().map(|it| &it.name);
        let sidecars = record.spec().init_containers.iter().flatten().map(|it| &it.name);
        let asked = names.chain(sidecars).filter(|name| container.as_ref().is_none_or(|only| only == *name));
        let asked = asked.map(|name| (record.uid.as_str().to_owned(), name.clone()));
        self.world.lock().unwrap().restarts_asked.extend(asked);
        // The answer is not awaited.
        let (done, _) = oneshot::channel();
        let order = RestartOrder { key: record.key.clone(), container, done };
        agent.orders_of_users.send(PodOrder::Restart(order)).await.unwrap();
    }

    /// containerd restarts.
    async fn disconnect(&mut self) {
        self.note("containerd is gone".to_owned());
        self.world().set_connected(false);
        self.send(LifecycleEvent::Disconnected);
        let away = Duration::from_millis(self.rng.u64(0..30_000));
        self.pass(away).await;
        self.connect();
    }

    fn connect(&mut self) {
        self.note("containerd is back".to_owned());
        self.world().set_connected(true);
        self.send(LifecycleEvent::Connected);
    }

    fn send(&self, event: LifecycleEvent) {
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
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
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
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
        self.world().events = None;
    }

    fn start_agent(&mut self) {
        self.note("the agent starts".to_owned());
        let network = self.network();
        self.agent = Some(Agent::start(&self.world, &mut self.view, network));
        self.publish_pressure();
    }

    async fn pass(&mut self, time: Duration) {
        pass(&self.world, time).await;
    }

    /// No more faults: everything comes to rest.
    async fn settle(&mut self) {
        self.note("no more faults".to_owned());
        self.world().calm_down();
        if !self.world().is_connected() {
            self.connect();
        }
        // A reading that finds what was missed, as after a reconnection.
        self.send(LifecycleEvent::Disconnected);
        self.send(LifecycleEvent::Connected);
        self.has_address = true;
        self.publish_network();
        self.short = false;
        self.publish_pressure();
        self.pass(SETTLE_TIME / 2).await;
        let before = self.effort();
        self.pass(SETTLE_TIME / 2).await;
        self.check_effort(before);
        self.check();
    }
}
