//! How long it takes until the node or the cluster is right again after an unusual event: mirror pods and Nodes that
//! were deleted, objects that come late, a link that swallows packets or comes back. limpet is measured and, with
//! `--kubelet`, a real kubelet, one after the other, against one apiserver.
//!
//! Running processes are seen in `/proc`, and the cluster's state is read from its apiserver; both are checked every 20
//! ms.

mod link;
mod scene;
mod sound;
mod table;

use std::thread;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, Stage};
use limpet_tests::measure;
use limpet_tests::wire::Wire;

use self::scene::{ContenderInfo, PODS, Scene, Took, until};
use self::table::Table;

/// How many runs limpet has. A run takes three minutes, so the default of `--runs`, 50, would take hours.
const MOST_RUNS: usize = 10;
/// How many runs a kubelet has, of which one takes six minutes, and the first twelve.
const MOST_OF_KUBELET: usize = 3;

/// A situation with a link that is in order: what is measured, and how.
struct Sound(&'static [&'static str], fn(&Scene<'_>) -> Result<Vec<Took>>);

/// The situations with a link that is in order. They are independent of each other.
const SOUND: [Sound; 5] = [
    Sound(&["a deleted mirror is there again"], sound::deleted_mirror),
    Sound(&["the namespace of a static pod appears: its mirror is there"], sound::missing_namespace),
    Sound(&["an edited mirror is put right"], sound::edited_mirror),
    Sound(&["a ConfigMap's new value is in a pod's volume"], sound::changed_config_map),
    Sound(&["a missing ConfigMap is created: the pod that waits runs"], sound::missing_config_map),
];

const NODE: Sound = Sound(&["a deleted Node is there again, and ready"], sound::deleted_node);

/// A situation with a link that fails.
struct Broken(&'static [&'static str], fn(&Scene<'_>, &mut dyn Contender) -> Result<Vec<Took>>);

const BROKEN: [Broken; 4] = [
    Broken(
        &["packets are swallowed: a static pod starts", "packets are swallowed: an edited static pod runs"],
        link::static_pods,
    ),
    Broken(
        &[
            "the agent starts without a server: an edited static pod runs",
            "the agent starts without a server: a removed one has ended",
            "the agent starts without a server: a killed API pod runs",
        ],
        link::restarted_agent,
    ),
    Broken(
        &["the link is back: the Node is ready", "the link is back: five changed statuses are true"],
        link::link_comes_back,
    ),
    Broken(&[table::BOTH_RUN, "the link is back: the successor runs"], link::replaced_pod),
];

fn main() -> Result<()> {
    let runs = measure::setting(measure::RUNS_VARIABLE, MOST_RUNS)?.min(MOST_RUNS);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    let cluster = Cluster::boot()?;
    cluster.add_account()?;
    let wire = Wire::to(cluster.port())?;
    stage.admit(&cluster, &wire.address())?;
    println!("containerd {}.{}, {runs} runs of limpet", version.0, version.1);
    let mut bench = Bench { cluster, wire, table: Table::default() };
    stage.measure(|stage| {
        let (contenders, containerd) = stage.parts();
        contenders.into_iter().try_for_each(|contender| {
            let runs = if is_limpet(contender) { runs } else { runs.min(MOST_OF_KUBELET) };
            bench.measure(contender, containerd, runs)
        })
    })?;
    print!("{}", bench.table.text());
    bench.table.write(version)?;
    let within = bench.table.check_budgets();
    drop(bench);
    stage.finish()?;
    within
}

fn is_limpet(contender: &dyn Contender) -> bool {
    contender.name() == "limpet"
}

/// The means and the results of the measurement.
struct Bench {
    cluster: Cluster,
    wire: Wire,
    table: Table,
}

impl Bench {
    fn measure(&mut self, contender: &mut dyn Contender, containerd: &Containerd, runs: usize) -> Result<()> {
        self.wire.join();
        let place = ContenderInfo::new(contender);
        contender.start()?;
        for run in 0..runs {
            println!("{}, run {}", contender.name(), run + 1);
            self.run(contender, &place, run)?;
        }
        let scene = self.scene(&place, runs);
        let path = scene.node();
        until("no pods", || self.cluster.list(PODS).is_ok_and(|pods| pods.is_empty()))?;
        until("the end of all tasks", || containerd.tasks().is_ok_and(|tasks| tasks.is_empty()))?;
        contender.stop()?;
        if scene.at(&path).is_some() { self.cluster.delete(&path) } else { Ok(()) }
    }

    fn run(&mut self, contender: &mut dyn Contender, place: &ContenderInfo, run: usize) -> Result<()> {
        self.wait_ready(place, run)?;
        self.sound(contender.name(), place, run)?;
        for Broken(whats, act) in BROKEN {
            if !self.table.is_hopeless(contender.name(), whats) {
                let took = act(&self.scene(place, run), contender);
                self.wire.join();
                self.note(contender.name(), whats, &took.context(whats[0])?)?;
            }
        }
        self.node(contender, place, run)
    }

    /// Measures limpet's situations one after the other, and a kubelet's all at once: they take minutes and depend on
    /// its timers, not on the machine.
    fn sound(&mut self, who: &'static str, place: &ContenderInfo, run: usize) -> Result<()> {
        let chosen: Vec<_> = SOUND.iter().filter(|Sound(whats, _)| !self.table.is_hopeless(who, whats)).collect();
        let scene = self.scene(place, run);
        let took: Vec<_> = if who == "limpet" {
            chosen.iter().map(|Sound(_, act)| act(&scene)).collect()
        } else {
            thread::scope(|scope| {
                let all: Vec<_> = chosen.iter().map(|Sound(_, act)| scope.spawn(move || act(&scene))).collect();
                all.into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked"))))
                    .collect()
            })
        };
        for (Sound(whats, _), took) in chosen.into_iter().zip(took) {
            self.note(who, whats, &took.context(whats[0])?)?;
        }
        Ok(())
    }

    /// Measures how a deleted Node is made again. A kubelet makes its Node only at its start.
    fn node(&mut self, contender: &mut dyn Contender, place: &ContenderInfo, run: usize) -> Result<()> {
        let (Sound(whats, act), who) = (NODE, contender.name());
        if self.table.is_hopeless(who, whats) {
            return Ok(());
        }
        let took = act(&self.scene(place, run)).context(whats[0])?;
        self.note(who, whats, &took)?;
        if took.contains(&None) {
            contender.stop()?;
            contender.start()?;
        }
        Ok(())
    }

    fn wait_ready(&self, place: &ContenderInfo, run: usize) -> Result<()> {
        let scene = self.scene(place, run);
        until("a node that is ready", || scene.is_ready())
    }

    fn scene<'a>(&'a self, place: &'a ContenderInfo, run: usize) -> Scene<'a> {
        Scene { cluster: &self.cluster, wire: &self.wire, place, run }
    }

    fn note(&mut self, who: &'static str, whats: &'static [&'static str], took: &[Took]) -> Result<()> {
        for (what, took) in whats.iter().zip(took) {
            self.table.add(who, what, *took);
            ensure!(took.is_some() || who != "limpet", "{what}: limpet took too long");
        }
        Ok(())
    }
}
