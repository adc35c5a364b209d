//! How long a node takes from the moment at which containerd answers until 50 pods of its manifests run: limpet with its
//! own shim and with containerd's and, with `--kubelet`, a real kubelet. Their images are present, nothing else is.

use std::time::Instant;

use anyhow::{Context as _, Result};
use limpet_tests::agent;
use limpet_tests::contender::{Contender, Stage, apply, remove, settle, wait_ready};
use limpet_tests::life::{Life, OnTerm};
use limpet_tests::manifest::pod;
use limpet_tests::measure::{self, Durations};

/// How many pods run.
const PODS: usize = 50;

/// The two shims, each with its name in the results.
const SHIMS: [(&str, &str); 2] = [("limpet", "limpet"), ("runc-v2", "limpet, runc-v2")];

fn main() -> Result<()> {
    let runs = measure::setting(measure::RUNS_VARIABLE, 10)?;
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {runs} starts of each; images present", version.0, version.1);
    let durations = stage.measure(|stage| measure_all(stage, runs))?;
    print!("{}", durations.table());
    measure::write(env!("CARGO_TARGET_TMPDIR"), "boot", version, durations.json())?;
    stage.finish()
}

fn measure_all(stage: &mut Stage, runs: usize) -> Result<Durations> {
    let dir = stage.node.dir().join("lives");
    let lives: Vec<_> = (0..PODS).map(|number| Life::new(&dir.join(number.to_string()))).collect::<Result<_>>()?;
    let mut durations = Durations::default();
    for _ in 0..runs {
        for (shim, who) in SHIMS {
            let line = if shim == "limpet" { agent::limpets_shim()? } else { format!("shim: {shim}") };
            stage.node.agent.reconfigure(|settings| {
                settings.limpet.retain(|line| !line.starts_with("shim:"));
                settings.limpet.push(line);
            })?;
            boot(stage, 0, who, &lives, &mut durations)?;
        }
        for index in 1..stage.parts().0.len() {
            let who = stage.parts().0[index].name();
            boot(stage, index, who, &lives, &mut durations)?;
        }
    }
    Ok(durations)
}

/// Starts containerd and the contender with all manifests, and removes everything again.
fn boot(stage: &mut Stage, index: usize, who: &'static str, lives: &[Life], durations: &mut Durations) -> Result<()> {
    let name = |number: usize| format!("bench-{number}");
    for (number, life) in lives.iter().enumerate() {
        life.forget();
        apply(stage.parts().0[index], &pod(&name(number), life.spec(OnTerm::Ends)))?;
    }
    stage.node.containerd.stop()?;
    stage.node.containerd.start()?;
    let (mut contenders, containerd) = stage.parts();
    let contender: &mut dyn Contender = *contenders.get_mut(index).context("no such contender")?;
    let begun = Instant::now();
    contender.spawn()?;
    let mut started = lives.iter().map(|life| Ok(life.started()? - begun)).collect::<Result<Vec<_>>>()?;
    started.sort();
    let section = format!("{PODS} pods");
    durations.add(&section, "containerd answers -> first runs", who, &started[..1]);
    durations.add(&section, "containerd answers -> all run", who, &started[PODS - 1..]);
    wait_ready(contender, PODS)?;
    (0..PODS).try_for_each(|number| remove(contender, &name(number)))?;
    settle(contender, containerd)?;
    contender.stop()
}
