//! How long from a manifest's rename to its container's first process, and from a process's death to its
//! successor, beside the floor: the same containerd calls made directly. Both on one node, in turns, in one run.
//!
//! The first process announces itself through a FIFO that is mounted into the container, the same way for all.

mod floor;
mod table;

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::node::NodeOptions;
use limpet_tests::{TestNode, agent, node, process, wait};
use rustix::process::Signal;
use serde_json::json;

use self::floor::Floor;
use self::table::Row;

/// How many starts of each kind are measured; the default is enough for a 99th percentile.
const RUNS_VARIABLE: &str = "LIMPET_BENCH_RUNS";

/// Starts before the first one that counts: caches are warm for both.
const WARM_UP: usize = 3;

/// What every measured container runs.
const ANNOUNCE: &str = "echo > /beat/fifo; trap 'exit 0' TERM; sleep 100000 & wait";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    wait::end_on_signal();
    node::sweep();
    let runs = match std::env::var(RUNS_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{RUNS_VARIABLE}={text}"))?,
        Err(_) => 50,
    };
    let program = std::env::var_os(agent::PROGRAM_VARIABLE).map(PathBuf::from);
    let program = program.map_or_else(|| agent::build(&["--release"]), Ok)?;
    let node = TestNode::boot(&NodeOptions { program: Some(program), ..NodeOptions::default() })?;
    let (major, minor) = node.containerd.version();
    println!("containerd {major}.{minor}, {runs} starts each, in turns; image present, host network");
    let rows = measure(&node, runs).map_err(|error| error.context(node.evidence()))?;
    print!("{}", table::print(&rows));
    let file = results_file();
    table::write_json(&rows, &format!("{major}.{minor}"), &file)?;
    println!("written to {}", file.display());
    node.finish()
}

/// `target/bench/start.json`.
fn results_file() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).join("bench/start.json")
}

fn measure(node: &TestNode, runs: usize) -> Result<Vec<Row>> {
    let beat = Beat::new(&node.dir().join("beat"))?;
    let floor = Floor::connect(node, &beat.dir)?;
    let mut rows = vec![
        Row::new("floor: containerd calls alone"),
        Row::new("limpet: rename to first process"),
        Row::new("limpet: exit to restarted"),
    ];
    for run in 0..WARM_UP + runs {
        let took = [floor_start(&floor, &beat, run)?, limpet_start(node, &beat)?, limpet_restart(node, &beat)?];
        if run >= WARM_UP {
            rows.iter_mut().zip(took).for_each(|(row, took)| row.samples.push(took));
        }
    }
    Ok(rows)
}

/// Once in some hundred starts a shim does not find its root file system on the first try. limpet creates such a task
/// again; the floor is what a start takes that goes well.
fn floor_start(floor: &Floor, beat: &Beat, run: usize) -> Result<Duration> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let id = format!("floor-{run}-{attempt}");
        let start = beat.start();
        let took = floor.start(&id).and_then(|()| beat.next("the floor's process")).map(|heard| heard - start);
        let removed = floor.remove(&id);
        match took {
            Ok(took) => return removed.map(|()| took),
            Err(error) if attempt < 3 => eprintln!("left out: {error:#}"),
            Err(error) => return Err(error),
        }
    }
}

/// Starts the pod and leaves it running.
fn limpet_start(node: &TestNode, beat: &Beat) -> Result<Duration> {
    let mount = json!({ "volumeMounts": [{ "name": "beat", "mountPath": "/beat" }] });
    let volume = json!({ "name": "beat", "hostPath": { "path": beat.dir } });
    let spec = json!({ "containers": [with(shell("main", ANNOUNCE), mount)], "volumes": [volume] });
    let manifest = serde_json::to_string(&pod("bench", spec))?;
    let start = beat.start();
    node.drop_text("bench.yaml", &manifest)?;
    Ok(beat.next("the pod's process")?.duration_since(start))
}

/// Kills the process of the pod that runs, waits for its successor, and removes the pod.
fn limpet_restart(node: &TestNode, beat: &Beat) -> Result<Duration> {
    node.wait_running("bench")?;
    let tasks = node.containerd.tasks()?;
    ensure!(tasks.len() == 1, "one task was to run: {tasks:?}");
    let start = beat.start();
    process::signal_pid(tasks[0].pid, Signal::KILL);
    let took = beat.next("the successor's process")?.duration_since(start);
    node.remove("bench")?;
    node.wait_gone("bench")?;
    node.wait_nothing_runs()?;
    Ok(took)
}

/// Where containers announce their first process, and who listens.
struct Beat {
    dir: PathBuf,
    heard: Receiver<Instant>,
}

impl Beat {
    fn new(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
        let path = dir.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0)
            .context("make a FIFO")?;
        // Opened for both, so that it has a reader before the first writer and no end between two.
        let mut fifo: File = OpenOptions::new().read(true).write(true).open(&path)?;
        let (say, heard) = channel();
        thread::spawn(move || {
            let mut byte = [0];
            while fifo.read_exact(&mut byte).is_ok() && say.send(Instant::now()).is_ok() {}
        });
        Ok(Self { dir: dir.to_owned(), heard })
    }

    /// The moment from which is measured; what was heard before does not count.
    fn start(&self) -> Instant {
        while self.heard.try_recv().is_ok() {}
        Instant::now()
    }

    fn next(&self, what: &str) -> Result<Instant> {
        self.heard.recv_timeout(wait::SOON).with_context(|| format!("waited in vain for {what}"))
    }
}
