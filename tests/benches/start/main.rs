//! How long the steps in the life of a pod take: of limpet and, with `--kubelet`, of a real kubelet on the same
//! containerd; and of the floor, the same containerd calls made directly, for what can be compared with it.
//!
//! The process in the container reports its start and its end through a FIFO, the same way for all. The contenders take
//! turns of a few runs each, so that a machine that grows slower or faster does so for all of them.

mod cycle;
mod floor;

use std::time::{Duration, Instant};

use anyhow::Result;
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, Stage};
use limpet_tests::life::{Life, OnTerm};
use limpet_tests::measure::{self, Durations};

use self::cycle::{Network, START, STEPS, Steps};
use self::floor::Floor;

/// How many runs a turn has.
const RUNS_PER_TURN: usize = 10;

/// How many pods a crowd has.
const CROWD_SIZE: usize = 20;

fn main() -> Result<()> {
    let runs = measure::setting(measure::RUNS_VARIABLE, 50)?;
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {runs} runs of each kind; image present", version.0, version.1);
    let durations = stage.measure(|stage| measure_all(stage, runs))?;
    print!("{}", durations.table());
    measure::write(env!("CARGO_TARGET_TMPDIR"), "start", version, durations.json())?;
    stage.finish()
}

fn measure_all(stage: &mut Stage, runs: usize) -> Result<Durations> {
    let dir = stage.node.dir().join("lives");
    let lives: Vec<_> =
        (0..CROWD_SIZE).map(|number| Life::new(&dir.join(number.to_string()))).collect::<Result<_>>()?;
    let mut bench =
        Bench { floor: Floor::connect(&stage.node, &lives[0])?, lives, durations: Durations::default(), cycles: 0 };
    let (mut contenders, containerd) = stage.parts();
    let mut left = runs;
    while left > 0 {
        let turn = left.min(RUNS_PER_TURN);
        for contender in &mut contenders {
            contender.start()?;
            bench.turn(&**contender, containerd, turn)?;
            contender.stop()?;
        }
        left -= turn;
    }
    for contender in &mut contenders {
        contender.start()?;
        bench.crowds(&**contender, containerd, runs.div_ceil(CROWD_SIZE))?;
        contender.stop()?;
    }
    Ok(bench.durations)
}

struct Bench {
    floor: Floor,
    lives: Vec<Life>,
    durations: Durations,
    cycles: usize,
}

impl Bench {
    /// Runs pods one after the other. The first of each network warms caches, so its figures are dropped.
    fn turn(&mut self, contender: &dyn Contender, containerd: &Containerd, runs: usize) -> Result<()> {
        for network in Network::ALL {
            let section = format!("{}, one at a time", network.name());
            if contender.name() == "podman" && network == Network::Cni {
                continue;
            }
            for run in 0..=runs {
                if contender.name() == "limpet" && network == Network::Host {
                    let took = self.floor_start()?;
                    if run > 0 {
                        self.durations.add(&section, START, "floor", &[took]);
                    }
                }
                let steps = self.cycle(contender, containerd, network, 1)?;
                if run > 0 {
                    self.note(&section, contender, &steps);
                }
            }
        }
        Ok(())
    }

    /// Runs many pods at once.
    fn crowds(&mut self, contender: &dyn Contender, containerd: &Containerd, rounds: usize) -> Result<()> {
        for network in Network::ALL {
            let section = format!("{}, {CROWD_SIZE} at once", network.name());
            if contender.name() == "podman" && network == Network::Cni {
                continue;
            }
            for _ in 0..rounds {
                let steps = self.cycle(contender, containerd, network, CROWD_SIZE)?;
                self.note(&section, contender, &steps);
            }
        }
        Ok(())
    }

    fn cycle(
        &mut self,
        contender: &dyn Contender,
        containerd: &Containerd,
        network: Network,
        pods: usize,
    ) -> Result<Steps> {
        self.cycles += 1;
        cycle::run(contender, containerd, network, &self.lives[..pods], self.cycles)
    }

    fn note(&mut self, section: &str, contender: &dyn Contender, steps: &Steps) {
        for (what, samples) in STEPS.iter().zip(steps) {
            self.durations.add(section, what, contender.name(), samples);
        }
    }

    /// Measures one start of the floor. Once in some hundred starts a shim does not find its root file system at the
    /// first attempt. limpet creates such a task again, while the floor is what a successful start takes.
    fn floor_start(&mut self) -> Result<Duration> {
        let life = &self.lives[0];
        let mut attempt = 0;
        loop {
            attempt += 1;
            let id = format!("floor-{}-{attempt}", self.cycles);
            life.forget();
            let start = Instant::now();
            let took =
                self.floor.start(&id, &Life::script(OnTerm::Ends)).and_then(|()| life.started()).map(|at| at - start);
            let removed = self.floor.remove(&id);
            match took {
                Ok(took) => return removed.and_then(|()| life.ended()).map(|_| took),
                Err(error) if attempt < 3 => eprintln!("left out: {error:#}"),
                Err(error) => return Err(error),
            }
        }
    }
}
