//! A line that comes and goes a thousand times, while pods are made, edited and deleted on both sides of it.

use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::manifest::{IDLE, shell, simple, with};
use limpet_tests::{TestNode, wait};
use serde_json::json;

use super::agreement::{Running, wait_agreement};
use super::line::Line;
use super::relay::Way;
use super::{create, join, path};

const FLAP_COUNT: u32 = 1_000;
/// How long the line stays in one state, in milliseconds.
const HOLDS: std::ops::Range<u64> = 50..200;
/// After how many flaps pods are created or deleted.
const FLAPS_PER_TURN: u32 = 10;
const SEED: u64 = 1_000;

/// Interrupts the line: silently, in one direction, or so that the node's kernel notices.
fn take_away(line: &Line, rng: &mut fastrand::Rng) -> Result<()> {
    let (open, shut) = (Way::default(), Way { swallows: true, ..Way::default() });
    match rng.u32(0..4) {
        0 => line.cut(),
        1 => line.set(open, shut),
        2 => line.set(shut, open),
        _ => line.plug(false)?,
    }
    Ok(())
}

fn bring_back(line: &Line) -> Result<()> {
    line.heal();
    line.plug(true)
}

/// The pods that these turns have made: bound by the apiserver, and local to the node.
#[derive(Debug, Default)]
struct Turns {
    number: u32,
    bound: Vec<String>,
    local: Vec<String>,
}

impl Turns {
    fn next(&mut self, node: &TestNode, cluster: &Cluster, rng: &mut fastrand::Rng) -> Result<()> {
        self.number += 1;
        let name = format!("turn-{}", self.number);
        match rng.u32(0..6) {
            0 | 1 if self.bound.len() < 5 => {
                create(node, cluster, &simple(&name, IDLE))?;
                self.bound.push(name);
            }
            2 if self.local.len() < 5 => {
                node.apply(&simple(&name, IDLE))?;
                self.local.push(name);
            }
            3 if !self.local.is_empty() => {
                // Another version under the same name: the old pod ends first.
                let pod = &self.local[rng.usize(0..self.local.len())];
                let env = json!([{ "name": "TURN", "value": name }]);
                let edited = json!({ "spec": { "containers": [with(shell("main", IDLE), json!({ "env": env }))] } });
                node.apply(&with(simple(pod, IDLE), edited))?;
            }
            4 if !self.local.is_empty() => {
                node.remove(&self.local.swap_remove(rng.usize(0..self.local.len())))?;
            }
            _ if !self.bound.is_empty() => {
                let name = self.bound.swap_remove(rng.usize(0..self.bound.len()));
                cluster.delete(&path(node, &name))?;
            }
            _ => {}
        }
        Ok(())
    }
}

pub(crate) fn a_thousand_flaps_lose_nothing(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    node.apply(&simple("kept", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, &cluster, 2)?;
    let (mut rng, mut turns) = (fastrand::Rng::with_seed(SEED), Turns::default());
    let agent = node.agent.pid();
    for flap in 0..FLAP_COUNT {
        take_away(&line, &mut rng)?;
        // The fault itself is a matter of time, so there is no event to wait for.
        std::thread::sleep(Duration::from_millis(rng.u64(HOLDS)));
        bring_back(&line)?;
        std::thread::sleep(Duration::from_millis(rng.u64(HOLDS)));
        if flap % FLAPS_PER_TURN == 0 {
            turns.next(node, &cluster, &mut rng)?;
        }
        ensure!(!wait::interrupted(), "interrupted");
    }
    println!("after {FLAP_COUNT} flaps: {turns:?}");
    for name in turns.bound.iter().chain(&turns.local) {
        node.wait_running(name)?;
    }
    wait_agreement(node, &cluster, 2 + turns.bound.len() + turns.local.len())?;
    node.agent.check()?;
    ensure!(node.agent.pid() == agent, "the agent was restarted");
    running.check(node)
}
