//! What a node costs while nothing happens on it: memory, wake-ups and bytes written, with no pod, a few and many; of
//! limpet and, with `--kubelet`, of a real kubelet, each with the containerd, shims and loggers that its pods need.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::contender::{Stage, apply, processes, remove, settle, wait_ready};
use limpet_tests::footprint::Footprint;
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::{measure, wait};
use serde_json::{Value, json};

/// How many pods lie idle.
const PODS: [usize; 3] = [0, 10, 50];

/// The budgets of private memory, by pods (ARCHITECTURE.md, section 9).
const PRIVATE_KIB: [(usize, u64); 2] = [(0, 2 * 1_024), (50, 4 * 1_024)];

/// The budget of wake-ups per second.
const WAKE_UPS: f64 = 0.5;

/// How long the effects of the last start may still last.
const SETTLE_TIME: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60)? as u64);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!(
        "containerd {}.{}, {window:?} of idleness each; pods of one container, host network",
        version.0, version.1
    );
    let rows = stage.measure(|stage| measure_all(stage, window))?;
    print(&rows);
    let json = rows.iter().map(|row| row.json(window)).collect();
    measure::write(env!("CARGO_TARGET_TMPDIR"), "idle", version, json)?;
    stage.finish()?;
    check_budgets(&rows, measure::is_dist()?)
}

/// Whether limpet's agent is within its budgets.
fn check_budgets(rows: &[Row], is_dist: bool) -> Result<()> {
    for (pods, budget) in PRIVATE_KIB {
        let of_agent = rows.iter().find(|row| row.who == "limpet" && row.kind == "agent" && row.pods == pods);
        let row = of_agent.with_context(|| format!("nothing was measured with {pods} pods"))?;
        let private = row.cost.private;
        ensure!(
            !is_dist || private <= budget,
            "{private} KiB of private memory with {pods} pods, of a budget of {budget}"
        );
        ensure!(
            row.wakes <= WAKE_UPS,
            "{:.1} wake-ups a second with {pods} pods, of a budget of {WAKE_UPS}",
            row.wakes
        );
        ensure!(row.cost.written == 0, "{} bytes were written with {pods} idle pods", row.cost.written);
    }
    Ok(())
}

/// What the processes of one kind cost with that many pods.
struct Row {
    who: &'static str,
    pods: usize,
    kind: &'static str,
    /// The memory and processes at the end of the window, and the wake-ups and bytes within it.
    cost: Footprint,
    /// Wake-ups a second.
    wakes: f64,
    /// Bytes written to disks a minute.
    written: f64,
}

impl Row {
    fn json(&self, window: Duration) -> Value {
        let Footprint { processes, pss, private, wakes, written, threads, descriptors } = self.cost;
        json!({
            "who": self.who, "pods": self.pods, "kind": self.kind, "seconds": window.as_secs(), "processes": processes,
            "pss_kib": pss, "private_kib": private, "wakes": wakes, "written_bytes": written,
            "threads": threads, "descriptors": descriptors,
        })
    }
}

fn measure_all(stage: &mut Stage, window: Duration) -> Result<Vec<Row>> {
    let dir = stage.node.dir().to_owned();
    let (contenders, containerd) = stage.parts();
    let mut rows = Vec::new();
    for contender in contenders {
        contender.start()?;
        let mut running = 0;
        for pods in PODS {
            (running..pods).try_for_each(|number| apply(contender, &simple(&format!("idle-{number}"), IDLE)))?;
            running = pods;
            wait_ready(contender, pods)?;
            pass(SETTLE_TIME)?;
            let kinds = processes(contender, containerd, &dir)?;
            let before: Vec<_> = kinds.iter().map(|(_, pids)| Footprint::measure_all(pids)).collect();
            pass(window)?;
            for ((kind, pids), before) in kinds.into_iter().zip(before) {
                rows.push(row(contender.name(), pods, kind, &before, Footprint::measure_all(&pids), window));
            }
        }
        (0..running).try_for_each(|number| remove(contender, &format!("idle-{number}")))?;
        settle(contender, containerd)?;
        contender.stop()?;
    }
    Ok(rows)
}

/// Lets time pass. Idleness is measured here, so there is no event to wait for.
fn pass(time: Duration) -> Result<()> {
    let start = std::time::Instant::now();
    while start.elapsed() < time {
        anyhow::ensure!(!wait::interrupted(), "interrupted");
        thread::sleep(Duration::from_millis(500).min(time));
    }
    Ok(())
}

fn row(
    who: &'static str,
    pods: usize,
    kind: &'static str,
    before: &Footprint,
    after: Footprint,
    window: Duration,
) -> Row {
    let wakes = after.wakes.saturating_sub(before.wakes);
    let written = after.written.saturating_sub(before.written);
    let (wakes_a_second, written_a_minute) =
        (wakes as f64 / window.as_secs_f64(), written as f64 * 60.0 / window.as_secs_f64());
    Row {
        who,
        pods,
        kind,
        cost: Footprint { wakes, written, ..after },
        wakes: wakes_a_second,
        written: written_a_minute,
    }
}

fn print(rows: &[Row]) {
    println!(
        "\n{:<8} {:>4} {:<11} {:>9} {:>10} {:>12} {:>8} {:>10} {:>12}",
        "of", "pods", "processes", "number", "PSS MiB", "private MiB", "threads", "wakes/s", "kB/min"
    );
    for row in rows {
        let mib = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{:<8} {:>4} {:<11} {:>9} {:>10.1} {:>12.1} {:>8} {:>10.1} {:>12.1}",
            row.who,
            row.pods,
            row.kind,
            row.cost.processes,
            mib(row.cost.pss),
            mib(row.cost.private),
            row.cost.threads,
            row.wakes,
            row.written / 1e3,
        );
    }
}
