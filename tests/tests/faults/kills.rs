//! The agent is killed, or its connection to containerd cut, at each of its requests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{TestNode, suite};

use crate::fault::{self, Fault, Harm, Moment};
use crate::proxy::Call;
use crate::rig::{Rig, deadline};
use crate::subject::{Kind, PHASES, Phase, Subject};

pub(crate) fn kills_of_the_agent_at_every_step(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, Some(deadline()))?;
    let mut lasting = Subject::new(rig.node, "web", Kind::Lasting, 1)?;
    let mut once = Subject::new(rig.node, "once", Kind::Once, 2)?;
    for subject in [&mut lasting, &mut once] {
        lives(&mut rig, subject, faults)?;
    }
    eprintln!("{} faults injected", rig.injected);
    Ok(())
}

/// Takes a pod through all its phases: once undisturbed to learn the calls, then with one fault per phase until none
/// are left. A fault whose request does not come is tried once more, and then the test fails, because it has shown
/// nothing.
pub(crate) fn lives(rig: &mut Rig<'_>, subject: &mut Subject, faults: fn(Phase, &[Call]) -> Vec<Fault>) -> Result<()> {
    let (asked_for, rounds) = (fault::asked_for()?, fault::rounds()?);
    let mut left: BTreeMap<Phase, Vec<Fault>> = BTreeMap::new();
    let phases: Vec<Phase> = PHASES.into_iter().filter(|phase| subject.goes_through(*phase)).collect();
    for phase in &phases {
        let (calls, _) = rig.round(subject, *phase, None).with_context(|| format!("{} undisturbed", phase.name()))?;
        eprintln!(
            "{}: {} calls: {}",
            phase.name(),
            calls.len(),
            calls.iter().map(|call| call.method.as_str()).collect::<Vec<_>>().join(" ")
        );
        ensure!(!calls.is_empty(), "{}: the agent made no call that the proxy has seen", phase.name());
        let mut planned: Vec<Fault> = match &asked_for {
            Some(fault) => Some(fault.clone()).filter(|fault| fault.phase == *phase).into_iter().collect(),
            None => faults(*phase, &calls).into_iter().skip(rounds.start).take(rounds.len()).collect(),
        };
        eprintln!("{}: {} faults", phase.name(), planned.len());
        planned.reverse();
        left.insert(*phase, planned);
    }
    ensure!(asked_for.is_some() || left.values().any(|faults| !faults.is_empty()), "no fault is planned");
    let mut tried_again = BTreeSet::new();
    let mut missed = Vec::new();
    while left.values().any(|faults| !faults.is_empty()) {
        for phase in &phases {
            let fault = left.get_mut(phase).and_then(Vec::pop);
            let repeat = || match &fault {
                Some(fault) => format!("to repeat it alone: {}='{fault}'", fault::FAULT_VARIABLE),
                None => format!("{} undisturbed", phase.name()),
            };
            let (_, reached) = rig.round(subject, *phase, fault.as_ref()).with_context(repeat)?;
            let Some(fault) = fault.filter(|_| !reached) else { continue };
            if tried_again.insert(fault.to_string()) {
                left.entry(*phase).or_default().insert(0, fault);
            } else {
                missed.push(fault.to_string());
            }
        }
    }
    ensure!(missed.is_empty(), "never reached, in two attempts: {}", missed.join(" "));
    Ok(())
}

/// Every call, before and after it is done; in an ordinary run one moment of every third method.
fn faults(phase: Phase, calls: &[Call]) -> Vec<Fault> {
    let mut planned = Vec::new();
    // The event that proves a subscription is published again until it arrives, so its number differs from round to
    // round.
    let repeated = |call: &Call| call.method == "Events.Publish" && call.number > 1;
    for (place, call) in calls.iter().filter(|call| !repeated(call)).enumerate() {
        let fault = |harm, moment| Fault { phase, method: call.method.clone(), number: call.number, harm, moment };
        if call.method.starts_with("cni.") {
            planned.extend([Moment::Before, Moment::After].map(|moment| fault(Harm::KillAgent, moment)));
            planned.push(fault(Harm::Late, Moment::Before));
        } else if suite::is_long() {
            planned.extend([Moment::Before, Moment::After].map(|moment| fault(Harm::KillAgent, moment)));
            planned.push(fault(Harm::Cut, Moment::After));
        } else if call.number == 1 && (place + phase as usize).is_multiple_of(3) {
            planned.push(match place / 3 % 3 {
                0 => fault(Harm::KillAgent, Moment::Before),
                1 => fault(Harm::KillAgent, Moment::After),
                _ => fault(Harm::Cut, Moment::After),
            });
        }
    }
    planned
}
