//! Three writers edit manifests while agent, containerd and shims are killed at random. In the end what the manifests
//! say runs, once.

use anyhow::{Context as _, Result, anyhow, ensure};
use limpet_tests::{TestNode, suite, wait};

use crate::fault::{ANY, Harm, Moment, Target};
use crate::proxy::Armed;
use crate::rig::{Rig, deadline};
use crate::subject::{Kind, Phase, Subject};

/// The variable with the seed of a run that is repeated.
const SEED_VARIABLE: &str = "LIMPET_TEST_SEED";
const WRITERS: u32 = 3;
const PODS_EACH: u32 = 2;

/// A generator of random numbers, SplitMix64, which is small and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

pub(crate) fn random_edits_and_kills(node: &mut TestNode) -> Result<()> {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED_VARIABLE}={seed} is no number"))?,
        Err(_) => u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed()?.subsec_nanos()),
    };
    eprintln!("to repeat the same edits and kills: {SEED_VARIABLE}={seed}");
    let rounds = if suite::is_long() { 200 } else { 15 };
    run(node, &mut Dice(seed), rounds).with_context(|| format!("{SEED_VARIABLE}={seed}"))
}

fn run(node: &mut TestNode, dice: &mut Dice, rounds: usize) -> Result<()> {
    let mut rig = Rig::new(node, Some(deadline()))?;
    let mut writers: Vec<Vec<Subject>> = Vec::new();
    for writer in 0..WRITERS {
        let pod = |pod| Subject::new(rig.node, &format!("w{writer}-{pod}"), Kind::Lasting, 100 * (writer + 1) + pod);
        writers.push((0..PODS_EACH).map(pod).collect::<Result<_>>()?);
    }
    writers.iter_mut().flatten().for_each(|pod| pod.lenient = true);
    for round in 0..rounds {
        rig.reset()?;
        let harm = [Harm::KillAgent, Harm::KillAgent, Harm::KillContainerd, Harm::KillShim][dice.roll(4) as usize];
        let victim = &writers[dice.roll(3) as usize][dice.roll(u64::from(PODS_EACH)) as usize];
        let target = Target { method: ANY.to_owned(), number: 1 + dice.roll(40) as usize, about: None };
        eprintln!("{round}: {harm} at request {}", target.number);
        rig.proxy.arm([Armed { target, moment: Moment::After, harm, blow: rig.blow(harm, victim) }]);
        let edits: Vec<[u64; 2]> = writers.iter().map(|_| [dice.roll(u64::from(PODS_EACH)), dice.roll(10)]).collect();
        std::thread::scope(|scope| {
            let node = &*rig.node;
            let mut writing = Vec::new();
            for (pods, [pod, edit]) in writers.iter_mut().zip(edits) {
                let pod = &mut pods[pod as usize];
                writing.push(scope.spawn(move || edit_one(node, pod, edit)));
            }
            writing.into_iter().try_for_each(|writer| writer.join().map_err(|_| anyhow!("a writer panicked"))?)
        })?;
        // The next round does not wait for the end of this one, but only for its kill, and at times for rest.
        let struck = wait::until_true(std::time::Duration::from_secs(2), "the kill", || !rig.struck().is_empty());
        rig.injected += rig.struck().len();
        match harm {
            Harm::KillAgent if struck.is_ok() => rig.start_agent()?,
            Harm::KillContainerd if struck.is_ok() => rig.start_containerd()?,
            _ => {}
        }
        if dice.roll(4) == 0 || round + 1 == rounds {
            rig.reset()?;
            mend(&mut rig, &mut writers)?;
        }
    }
    for pod in writers.iter_mut().flatten().filter(|pod| pod.is_there()) {
        pod.begin(rig.node, Phase::Delete)?;
    }
    let all: Vec<&Subject> = writers.iter().flatten().collect();
    rig.settle(&all, None)?;
    eprintln!("{} kills in {rounds} rounds", rig.injected);
    ensure!(rig.injected > 0, "nothing was killed in {rounds} rounds");
    Ok(())
}

/// Performs a writer's next edit of one of its pods.
fn edit_one(node: &TestNode, pod: &mut Subject, edit: u64) -> Result<()> {
    match (pod.is_there(), edit) {
        (false, _) => pod.begin(node, Phase::Start),
        (true, 0..=2) => pod.begin(node, Phase::Image),
        (true, 3..=5) => pod.begin(node, Phase::Recreate),
        (true, 6..=7) if pod.accepted => pod.break_manifest(node),
        (true, _) => pod.begin(node, Phase::Delete),
    }
}

/// Waits until what runs is what the manifests say.
fn mend(rig: &mut Rig<'_>, writers: &mut [Vec<Subject>]) -> Result<()> {
    let all: Vec<&Subject> = writers.iter().flatten().collect();
    rig.settle(&all, None)?;
    writers.iter_mut().flatten().for_each(|pod| pod.accepted = true);
    Ok(())
}
