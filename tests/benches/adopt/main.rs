//! How long an agent takes from its start until it shows as ready the pods that have been running since before: limpet
//! and, with `--kubelet`, a real kubelet. No process is restarted meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use limpet_tests::contender::{Contender, Stage, apply, ready, remove, settle, wait_ready};
use limpet_tests::life::{Life, OnTerm};
use limpet_tests::manifest::pod;
use limpet_tests::measure::{self, Durations};

/// How many pods run.
const PODS: usize = 50;

/// The interval between reads. Each read costs the agent time, and so distorts the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A wait takes this long only if it fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let runs = measure::setting(measure::RUNS_VARIABLE, 50)?;
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {runs} starts of each", version.0, version.1);
    let durations = stage.measure(|stage| measure_all(stage, runs))?;
    print!("{}", durations.table());
    measure::write(env!("CARGO_TARGET_TMPDIR"), "adopt", version, durations.json())?;
    stage.finish()
}

fn measure_all(stage: &mut Stage, runs: usize) -> Result<Durations> {
    let dir = stage.node.dir().join("lives");
    let lives: Vec<_> = (0..PODS).map(|number| Life::new(&dir.join(number.to_string()))).collect::<Result<_>>()?;
    let section = format!("{PODS} running pods");
    let mut durations = Durations::default();
    let (contenders, containerd) = stage.parts();
    for contender in contenders {
        contender.start()?;
        for (number, life) in lives.iter().enumerate() {
            apply(contender, &pod(&format!("bench-{number}"), life.spec(OnTerm::Ends)))?;
        }
        wait_ready(contender, PODS)?;
        lives.iter().for_each(Life::forget);
        for _ in 0..runs {
            contender.stop()?;
            let (answered, all) = restart(contender)?;
            durations.add(&section, "start -> first answer", contender.name(), &[answered]);
            durations.add(&section, "start -> all shown as ready", contender.name(), &[all]);
            let restarted = lives.iter().filter(|life| !life.is_quiet()).count();
            ensure!(restarted == 0, "{} restarted {restarted} pods", contender.name());
        }
        (0..PODS).try_for_each(|number| remove(contender, &format!("bench-{number}")))?;
        settle(contender, containerd)?;
        contender.stop()?;
    }
    Ok(durations)
}

/// Starts the contender. Returns how long it takes until it answers at all, and until every pod is shown as ready.
fn restart(contender: &mut dyn Contender) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    contender.spawn()?;
    let mut answered = None;
    loop {
        if let Ok(pods) = contender.pods() {
            let now = start.elapsed();
            let first = *answered.get_or_insert(now);
            if ready(&pods) == PODS {
                return Ok((first, now));
            }
        }
        ensure!(start.elapsed() < WAIT_TIMEOUT, "{} does not find its pods again", contender.name());
        thread::sleep(POLL_INTERVAL);
    }
}
