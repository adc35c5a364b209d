//! The life of pods from their manifests to their end, each step timed from its cause to the process it is about.

use std::time::{Duration, Instant};

use anyhow::Result;
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, apply, remove, settle, wait_ready};
use limpet_tests::life::{Life, OnTerm};
use limpet_tests::manifest::{pod, with};
use serde_json::{Value, json};

/// The first step, which the floor has too.
pub(crate) const START: &str = "manifest -> first process";

/// The steps, in their order.
pub(crate) const STEPS: [&str; 4] =
    [START, "exit -> restarted", "edit -> new pod (grace 2 s)", "removal -> process ended"];

/// How long each step of each pod took.
pub(crate) type Steps = [Vec<Duration>; 4];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Host,
    Cni,
}

impl Network {
    pub(crate) const ALL: [Self; 2] = [Self::Host, Self::Cni];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host network",
            Self::Cni => "CNI",
        }
    }
}

/// Takes one pod for each of `lives` through all steps, and waits until everything is gone. `number` makes the names
/// new.
pub(crate) fn run(
    contender: &dyn Contender,
    containerd: &Containerd,
    network: Network,
    lives: &[Life],
    number: usize,
) -> Result<Steps> {
    let names: Vec<_> = (0..lives.len()).map(|at| format!("bench-{number}-{at}")).collect();
    let manifest = |life: &Life, name: &str, on_term| -> Value {
        pod(
            name,
            with(
                life.spec(on_term),
                json!({ "hostNetwork": network == Network::Host, "terminationGracePeriodSeconds": 2 }),
            ),
        )
    };
    let put = |on_term| -> Result<Vec<Instant>> {
        let pods = lives.iter().zip(&names).map(|(life, name)| manifest(life, name, on_term));
        pods.map(|pod| Ok((Instant::now(), apply(contender, &pod)?).0)).collect()
    };
    lives.iter().for_each(Life::forget);
    // The process ignores SIGTERM when its pod is edited, but not when it is removed.
    let put_at = put(OnTerm::Ignores)?;
    let start = since(&put_at, lives, Life::started)?;
    wait_ready(contender, lives.len())?;

    lives.iter().try_for_each(Life::fail)?;
    let ended_at = lives.iter().map(Life::ended).collect::<Result<Vec<_>>>()?;
    let restart = since(&ended_at, lives, Life::started)?;
    wait_ready(contender, lives.len())?;

    let put_at = put(OnTerm::Ends)?;
    let edit = since(&put_at, lives, |life| life.ended().and_then(|_| life.started()))?;
    wait_ready(contender, lives.len())?;

    let removed_at = names.iter().map(|name| Ok((Instant::now(), remove(contender, name)?).0));
    let removed_at = removed_at.collect::<Result<Vec<_>>>()?;
    let removal = since(&removed_at, lives, Life::ended)?;
    settle(contender, containerd)?;
    Ok([start, restart, edit, removal])
}

/// The time from each cause to its effect.
fn since(causes: &[Instant], lives: &[Life], seen: impl Fn(&Life) -> Result<Instant>) -> Result<Vec<Duration>> {
    causes.iter().zip(lives).map(|(cause, life)| Ok(seen(life)? - *cause)).collect()
}
