//! Lives of a node whose source has generations: good and bad versions, a user's orders, and agents and nodes that end at any
//! moment. Whatever happens, what works returns, and stays.

mod disk;
mod keeper;
mod verdict;
mod version;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::SignedDuration;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::view::{Contents, View};
use limpet_generations::{CheckAction, Generations, Policies, Policy, Settings};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::node::NodeAddresses;
use limpet_worker::fake::world::{World, live};
use limpet_worker::merge_loop::SnapshotObserver;
use limpet_worker::trials::TrialKeeper as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agent::{Agent, NODE, OnTrial, pass};
use crate::run::Report;
use disk::{Disk, SOURCE};
use keeper::Keeper;
use version::Version;

/// After the last fault: longer than the longest pauses of pods and of pulls and a trial together, twice.
const SETTLE_TIME: Duration = Duration::from_secs(3_600);
/// After the last start of the node: until its pods run, and longer than a trial.
const BOOT_TIME: Duration = Duration::from_secs(900);
/// How long the life waits for a write that it cuts off.
const LONGEST_WAIT: Duration = Duration::from_secs(400);

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
    disk: Arc<Mutex<Disk>>,
    agent: Option<Agent>,
    view: View,
    /// What the source has had, the newest last.
    versions: Vec<Version>,
    begun: Instant,
    booted: Instant,
    /// Notified when the agent begins to write.
    writes: Arc<Notify>,
}

impl Node {
    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng.u64(..), trace);
        world.fault_rate = if rng.u32(0..3) == 0 { rng.u32(0..100) } else { 0 };
        world.script_of = Some(version::script_of);
        let now = Instant::now();
        let disk = Disk::new(settings(&mut rng));
        Self {
            rng,
            world: Arc::new(Mutex::new(world)),
            disk: Arc::new(Mutex::new(disk)),
            agent: None,
            view: View::default(),
            versions: Vec::new(),
            begun: now,
            booted: now,
            writes: Arc::default(),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    fn note(&self, step: String) {
        self.world().note(|| step);
    }

    async fn live(&mut self) {
        self.start_agent().await;
        // Most lives have something good to return to.
        if self.rng.u32(0..4) > 0 {
            let version = Version::good(&mut self.rng);
            self.publish(version);
            self.pass(Duration::from_secs(100)).await;
        }
        for _ in 0..self.rng.usize(4..24) {
            self.step().await;
            let pause = match self.rng.u32(0..5) {
                0 => Duration::ZERO,
                1 => Duration::from_millis(self.rng.u64(0..200)),
                2 => Duration::from_millis(self.rng.u64(0..10_000)),
                3 => Duration::from_secs(self.rng.u64(0..60)),
                _ => Duration::from_secs(self.rng.u64(0..400)),
            };
            self.pass(pause).await;
        }
    }

    async fn step(&mut self) {
        match self.rng.u32(0..20) {
            0..=6 => self.update(),
            7..=9 => self.interrupted_update().await,
            10 => self.process_exits(),
            11 => self.disconnect().await,
            12 | 13 => self.restart(false).await,
            14 => self.restart(true).await,
            15 => self.reboot().await,
            16 => self.failed_boots().await,
            17 => self.roll_back().await,
            18 => self.publish_again().await,
            _ => self.set_clock(),
        }
    }

    /// The source has another version; now and then one that it has had before.
    fn update(&mut self) {
        let version = match self.versions.last().cloned() {
            None => Version::good(&mut self.rng),
            Some(_) if self.rng.u32(0..4) == 0 => self.rng.choice(&self.versions).cloned().unwrap(),
            Some(mut version) => {
                (0..self.rng.u32(1..3)).for_each(|_| version.edit(&mut self.rng));
                version
            }
        };
        self.publish(version);
    }

    fn publish(&mut self, version: Version) {
        self.note(format!("update to {version:?}"));
        self.disk().allow_switches(0);
        let origin: Arc<str> = Arc::from("all.yaml");
        let read = manifest::read(&version.text(), &origin, SOURCE, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&origin, read, Contents::default);
        self.versions.push(version);
        if let Some(agent) = &self.agent {
            agent.publish(&mut self.view);
        }
    }

    /// The agent is killed, or the power is cut, around a write that an update leads to.
    async fn interrupted_update(&mut self) {
        self.update();
        let (writes, world) = (Arc::clone(&self.writes), Arc::clone(&self.world));
        for _ in 0..self.rng.u32(1..4) {
            tokio::select! {
                biased;
                () = writes.notified() => {}
                () = live(&world) => {}
                () = tokio::time::sleep(LONGEST_WAIT) => {}
            }
        }
        let moment = Duration::from_millis(self.rng.u64(0..120));
        self.pass(moment).await;
        if self.rng.bool() { self.reboot().await } else { self.restart(false).await }
    }

    fn process_exits(&mut self) {
        let code = *self.rng.choice(&[0, 1, 137]).unwrap();
        let mut world = self.world.lock().unwrap();
        let running = world.running();
        if let Some(pid) = self.rng.choice(&running) {
            world.exit(*pid, code);
        }
    }

    async fn disconnect(&mut self) {
        self.note("containerd is gone".to_owned());
        self.world().set_connected(false);
        self.send(LifecycleEvent::Disconnected);
        let away = Duration::from_millis(self.rng.u64(0..60_000));
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
        match self.agent.take() {
            Some(agent) if orderly => agent.stop().await,
            Some(agent) => agent.kill().await,
            None => {}
        }
        self.world().events = None;
        let away = Duration::from_millis(self.rng.u64(0..20_000));
        self.pass(away).await;
        self.start_agent().await;
    }

    async fn reboot(&mut self) {
        self.cut_power().await;
        self.start_agent().await;
    }

    async fn cut_power(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
        self.world().reboot();
        self.disk().boot += 1;
        self.booted = Instant::now();
    }

    /// The node is started several times, and never for long.
    async fn failed_boots(&mut self) {
        for _ in 0..self.rng.u32(2..4) {
            self.reboot().await;
            let up = Duration::from_millis(self.rng.u64(0..15_000));
            self.pass(up).await;
        }
    }

    async fn roll_back(&mut self) {
        let Some(agent) = &self.agent else { return };
        self.note("a user returns to the generation before".to_owned());
        self.disk().allow_switches(1);
        self.disk().is_ordered = true;
        agent.roll_back().await;
    }

    /// The source is read anew, without a change.
    async fn publish_again(&mut self) {
        let Some(version) = self.versions.pop() else { return };
        self.publish(version);
        self.restart(true).await;
    }

    /// Deadlines do not depend on it.
    fn set_clock(&mut self) {
        let step = SignedDuration::from_hours(*self.rng.choice(&[-24 * 365, -1, 1, 24 * 365]).unwrap());
        self.note(format!("the clock moves by {step:?}"));
        self.world().set_clock_by(step);
    }

    /// Starts the agent. Its first start may be cut off by another one.
    async fn start_agent(&mut self) {
        if self.rng.u32(0..6) == 0 {
            let keeper = self.keeper();
            let after = Duration::from_millis(self.rng.u64(0..120));
            if tokio::time::timeout(after, load(keeper)).await.is_err() {
                self.note("the agent is killed while it starts".to_owned());
                if self.rng.bool() {
                    self.cut_power().await;
                }
            }
        }
        self.note("the agent starts".to_owned());
        let (keeper, network) = (self.keeper(), NodeAddresses::single([10, 0, 0, 1].into()));
        let generations = load(Arc::clone(&keeper)).await;
        let observer = observer(Arc::clone(&keeper));
        let network = NodeNetwork { addresses: network, changes: 0 };
        let on_trial = OnTrial { generations, keeper, observer };
        self.agent = Some(Agent::on_trial(&self.world, &mut self.view, network, on_trial));
    }

    fn keeper(&mut self) -> Arc<Keeper> {
        Arc::new(Keeper {
            world: Arc::clone(&self.world),
            disk: Arc::clone(&self.disk),
            rng: Mutex::new(self.rng.fork()),
            booted: self.booted,
            writes: Arc::clone(&self.writes),
        })
    }

    async fn pass(&mut self, time: Duration) {
        pass(&self.world, time).await;
    }

    /// No more faults: everything comes to rest, and stays so over a start of the node.
    async fn settle(&mut self) {
        self.note("no more faults".to_owned());
        self.world().calm_down();
        self.send(LifecycleEvent::Disconnected);
        self.send(LifecycleEvent::Connected);
        self.pass(SETTLE_TIME).await;
        let (number, switches) = (self.running(), self.disk().all_switches);
        self.check();
        self.cut_power().await;
        self.start_agent().await;
        self.pass(BOOT_TIME).await;
        self.check();
        if (number, switches) != (self.running(), self.disk().all_switches) {
            self.violate(format!("generation {number:?} ran at rest, {:?} does after a start", self.running()));
        }
    }
}

/// The policies, and how strict they are.
fn settings(rng: &mut fastrand::Rng) -> Settings {
    let policy = if rng.u32(0..3) == 0 { Policy::Pods } else { Policy::All };
    Settings {
        policies: Policies::default().with(SOURCE, policy),
        progress_deadline: Duration::from_secs(rng.u64(60..300)),
        max_restarts: rng.u32(0..4),
        history_limit: rng.usize(1..4),
        check: rng.bool().then(|| CheckAction::Command(vec!["check".to_owned()])),
        ..Settings::default()
    }
}

/// The generations as the disk has them, once what this start makes of them is written.
async fn load(keeper: Arc<Keeper>) -> Generations {
    let (settings, boot, loaded) = {
        let mut disk = keeper.disk.lock().unwrap();
        (disk.settings.clone(), format!("boot {}", disk.boot), disk.load())
    };
    let (state, archive) = loaded;
    let names = (&Arc::from(NODE), &Arc::from(boot));
    let (mut generations, saves) = Generations::new(settings, names, [(SOURCE, state, archive)], keeper.now());
    match saves.is_empty() {
        true => {
            let wrong = keeper.disk.lock().unwrap().confirm();
            keeper.violate(wrong);
        }
        false => {
            Arc::clone(&keeper).save(saves).await;
            generations.remembered();
        }
    }
    generations
}

/// Sees what takes effect, and compares it with the disk.
fn observer(keeper: Arc<Keeper>) -> SnapshotObserver {
    Box::new(move |snapshots| {
        let wrong = keeper.disk.lock().unwrap().unwritten(&snapshots[SOURCE.index()]);
        keeper.violate(wrong);
    })
}
