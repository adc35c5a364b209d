//! containerd refuses each of the agent's calls, or does not answer it: many pods at once, each with its own fault.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{TestNode, suite};

use crate::fault::{self, Code, FAULT_VARIABLE, Fault, Harm, Moment, Target};
use crate::proxy::{Armed, Call};
use crate::rig::{Rig, request_timeout};
use crate::subject::{Kind, PHASES, Phase, Subject};

/// How long the agent waits for an answer: long enough for the start of many containers, short enough for a test.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many pods go through their phases at once.
const CONCURRENT_PODS: usize = 12;

pub(crate) fn errors_and_silence_at_every_call(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, Some(request_timeout(TIMEOUT)))?;
    let mut subjects = Vec::new();
    for lane in 0..CONCURRENT_PODS {
        subjects.push(Subject::new(rig.node, &format!("lane-{lane}"), Kind::Lasting, 100 + lane as u32)?);
    }
    let asked_for = fault::asked_for()?;
    let phases: Vec<Phase> = PHASES.into_iter().filter(|phase| *phase != Phase::Restart).collect();
    let mut left: Vec<(Phase, Vec<Fault>)> = Vec::new();
    for phase in &phases {
        let (calls, _) = rig.rounds(&mut subjects[..1], *phase, &[None])?;
        ensure!(!calls.is_empty(), "{}: the agent made no call that the proxy has seen", phase.name());
        let mut planned: Vec<Fault> = match &asked_for {
            Some(fault) => Some(fault.clone()).filter(|fault| fault.phase == *phase).into_iter().collect(),
            None => faults(*phase, &calls),
        };
        planned.reverse();
        left.push((*phase, planned));
    }
    let mut tried_again = BTreeSet::new();
    let mut missed = Vec::new();
    while left.iter().any(|(_, faults)| !faults.is_empty()) {
        for (phase, faults) in &mut left {
            let mut now: Vec<Option<Fault>> = (0..CONCURRENT_PODS).map(|_| faults.pop()).collect();
            let names: Vec<String> = now.iter().flatten().map(ToString::to_string).collect();
            eprintln!("{}: {}", phase.name(), names.join(" "));
            let repeat = || format!("one of these; to repeat one alone: {FAULT_VARIABLE}='…' of {}", names.join(" "));
            let (_, unreached) = rig.rounds(&mut subjects, *phase, &std::mem::take(&mut now)).with_context(repeat)?;
            for fault in unreached {
                if tried_again.insert(fault.to_string()) {
                    faults.insert(0, fault);
                } else {
                    missed.push(fault.to_string());
                }
            }
        }
    }
    eprintln!("{} errors and silences injected", rig.injected);
    ensure!(rig.injected > 0, "no error and no silence was injected");
    ensure!(missed.is_empty(), "never reached, in two attempts: {}", missed.join(" "));
    Ok(())
}

/// The lease keeps the container's snapshot on the disk as long as it exists.
pub(crate) fn a_lease_whose_deletion_fails_goes_after_a_reconnection(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, Some(request_timeout(TIMEOUT)))?;
    let mut subject = Subject::new(rig.node, "leased", Kind::Lasting, 100)?;
    rig.reset()?;
    let harm = Harm::Answer(Code::Unavailable);
    // The agent tries twice.
    let refusals = [1, 2].map(|number| Armed {
        target: Target { method: "Leases.Delete".to_owned(), number, about: None },
        moment: Moment::Before,
        harm,
        blow: rig.blow(harm, &subject),
    });
    rig.proxy.arm(refusals);
    subject.begin(rig.node, Phase::Start)?;
    rig.node.wait_running("leased")?;
    let leases = rig.node.containerd.ctr(&["leases", "ls", "-q"])?;
    ensure!(leases.contains("limpet-start-"), "both refusals, and no lease is left: {leases:?}");
    rig.start_containerd()?;
    rig.settle(&[&subject], None)
}

/// Every error at every call; ordinarily one at one call of each method, another one each time.
fn faults(phase: Phase, calls: &[Call]) -> Vec<Fault> {
    let about_a_pod = calls.iter().filter(|call| call.about.is_some());
    let mut planned = Vec::new();
    for (place, call) in about_a_pod.enumerate() {
        let harms = harms(&call.method);
        let fault = |(harm, moment)| Fault { phase, method: call.method.clone(), number: call.number, harm, moment };
        if suite::is_long() {
            planned.extend(harms.into_iter().map(fault));
        } else if call.number == 1 {
            let turn = place + phase as usize;
            planned.push(fault(harms[turn % harms.len()]));
        }
    }
    planned
}

/// The answers of containerd to a call. That something exists already, or is gone already, it answers after the call
/// has been done, as it does to a call whose first answer was lost.
fn harms(method: &str) -> Vec<(Harm, Moment)> {
    use Code::{
        Aborted, AlreadyExists, Cancelled, DeadlineExceeded, FailedPrecondition, Internal, NotFound, ResourceExhausted,
        Unavailable, Unknown,
    };
    let any = [Unavailable, Unknown, Internal, DeadlineExceeded, ResourceExhausted, Aborted, Cancelled];
    let mut harms = vec![(Harm::Delay, Moment::After), (Harm::Answer(Unavailable), Moment::After)];
    harms.extend(any.map(|code| (Harm::Answer(code), Moment::Before)));
    let (_, verb) = method.split_once('.').unwrap_or_default();
    match verb {
        "Create" | "Prepare" => harms.push((Harm::Answer(AlreadyExists), Moment::After)),
        "Delete" | "Remove" => harms.push((Harm::Answer(NotFound), Moment::After)),
        _ => {}
    }
    if matches!(method, "Tasks.Create" | "Tasks.Start" | "Tasks.Kill" | "Tasks.Update") {
        harms.push((Harm::Answer(NotFound), Moment::Before));
    }
    if matches!(verb, "Create" | "Start" | "Kill" | "Delete" | "Remove") {
        harms.push((Harm::Answer(FailedPrecondition), Moment::Before));
    }
    harms
}
