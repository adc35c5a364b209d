//! What a node costs that runs ten Deployments with a Service each: memory, wake-ups and bytes written while nothing happens, and
//! the time from power on until every Service answers. Of limpet alone; of a whole control plane on the node, with kubelet and
//! kube-proxy; and, with `--podman`, of Podman, which has pods at ports of the node in place of Services.

mod systems;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::contender::Stage;
use limpet_tests::footprint::Footprint;
use limpet_tests::measure::{self, Durations};
use limpet_tests::{own_network, wait};
use serde_json::{Value, json};
use systems::{Alone, ControlPlane, PodmanPods, System};

/// How many Deployments there are, each with a Service.
pub(crate) const APPS: usize = 10;
/// How long the effects of the start may last.
const SETTLE_TIME: Duration = Duration::from_secs(30);
/// The most boots of each; more say nothing new.
const MOST_BOOTS: usize = 10;
/// A limit that nothing here reaches.
const LIMIT: Duration = Duration::from_secs(300);
/// The time between two tries to connect.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long an address may be silent that leads nowhere.
const CONNECT: Duration = Duration::from_millis(200);

fn main() -> Result<()> {
    own_network::enter()?;
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60)? as u64);
    let boots = measure::setting(measure::RUNS_VARIABLE, MOST_BOOTS)?.min(MOST_BOOTS);
    let mut stage = Stage::set_with_cri()?;
    let version = stage.node.containerd.version();
    println!(
        "containerd {}.{}, {APPS} Deployments with Services, {window:?} of idleness, {boots} boots",
        version.0, version.1
    );
    let (rows, durations) = stage.measure(|stage| measure_all(stage, window, boots))?;
    print(&rows);
    print!("{}", durations.table());
    let document = rows.iter().map(Row::json).chain(durations.json().as_array().cloned().unwrap_or_default()).collect();
    measure::write(env!("CARGO_TARGET_TMPDIR"), "single-node", version, document)?;
    stage.finish()
}

/// What the processes of one kind cost.
struct Row {
    who: &'static str,
    kind: &'static str,
    /// The memory and processes at the end of the window, and the wake-ups and bytes within it.
    cost: Footprint,
    window: Duration,
}

impl Row {
    fn json(&self) -> Value {
        let Footprint { processes, pss, private, wakes, written, threads, descriptors } = self.cost;
        json!({
            "who": self.who, "kind": self.kind, "seconds": self.window.as_secs(), "processes": processes, "pss_kib": pss,
            "private_kib": private, "wakes": wakes, "written_bytes": written, "threads": threads, "descriptors": descriptors,
        })
    }
}

fn measure_all(stage: &mut Stage, window: Duration, boots: usize) -> Result<(Vec<Row>, Durations)> {
    let (mut rows, mut durations) = (Vec::new(), Durations::default());
    {
        let mut alone = Alone::default();
        rows.extend(measure_one(&mut alone, stage, window, boots, &mut durations)?);
    }
    {
        let mut whole = ControlPlane::prepare(stage)?;
        rows.extend(measure_one(&mut whole, stage, window, boots, &mut durations)?);
    }
    if stage.podman().is_some() {
        rows.extend(measure_one(&mut PodmanPods, stage, window, boots, &mut durations)?);
    }
    Ok((rows, durations))
}

/// Runs the apps on one system, looks on, and boots it several times.
fn measure_one(
    system: &mut dyn System,
    stage: &mut Stage,
    window: Duration,
    boots: usize,
    durations: &mut Durations,
) -> Result<Vec<Row>> {
    system.begin(stage)?;
    let addresses = system.addresses(stage)?;
    ensure!(addresses.len() == APPS, "{} of {APPS} apps", addresses.len());
    wait_answers(&addresses).with_context(|| system.evidence())?;
    wait::pass(SETTLE_TIME)?;
    let kinds = system.processes(stage)?;
    let before: Vec<_> = kinds.iter().map(|(_, pids)| Footprint::measure_all(pids)).collect();
    wait::pass(window)?;
    let row = |((kind, pids), before): ((&'static str, Vec<u32>), Footprint)| {
        let after = Footprint::measure_all(&pids);
        let (wakes, written) = (after.wakes.saturating_sub(before.wakes), after.written.saturating_sub(before.written));
        Row { who: system.name(), kind, cost: Footprint { wakes, written, ..after }, window }
    };
    let rows = kinds.into_iter().zip(before).map(row).collect();
    for _ in 0..boots {
        system.lose_power(stage)?;
        let on = Instant::now();
        system.boot(stage)?;
        let answered = wait_answers(&addresses).with_context(|| system.evidence())?;
        durations.add("power on", "to the first answer", system.name(), &[answered[0] - on]);
        durations.add("power on", "to an answer of each", system.name(), &[answered[APPS - 1] - on]);
    }
    system.end(stage)?;
    Ok(rows)
}

/// Waits until something accepts a connection at each address. Returns when, in order.
fn wait_answers(addresses: &[SocketAddr]) -> Result<Vec<Instant>> {
    let mut left = addresses.to_vec();
    let mut answered = Vec::new();
    wait::until_every(INTERVAL, LIMIT, "an answer of each app", || {
        left.retain(|address| {
            let answers = std::net::TcpStream::connect_timeout(address, CONNECT).is_ok();
            answered.extend(answers.then(Instant::now));
            !answers
        });
        left.is_empty().then_some(())
    })
    .with_context(|| format!("no answer at {left:?}"))?;
    Ok(answered)
}

fn print(rows: &[Row]) {
    println!(
        "\n{:<14} {:<24} {:>6} {:>9} {:>12} {:>8} {:>10} {:>10}",
        "of", "processes", "number", "PSS MiB", "private MiB", "threads", "wakes/s", "kB/min"
    );
    let line = |who: &str, kind: &str, cost: &Footprint, window: Duration| {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let (seconds, minutes) = (window.as_secs_f64(), window.as_secs_f64() / 60.0);
        println!(
            "{who:<14} {kind:<24} {:>6} {:>9.1} {:>12.1} {:>8} {:>10.1} {:>10.1}",
            cost.processes,
            mib(cost.pss),
            mib(cost.private),
            cost.threads,
            cost.wakes as f64 / seconds,
            cost.written as f64 / 1e3 / minutes,
        );
    };
    rows.iter().for_each(|row| line(row.who, row.kind, &row.cost, row.window));
    for rows in rows.chunk_by(|a, b| a.who == b.who) {
        let costs: Vec<_> = rows.iter().map(|row| row.cost).collect();
        line(rows[0].who, "all", &Footprint::sum(&costs), rows[0].window);
    }
}
