//! What the agent relies on is killed at each of its requests: containerd, the pod's shim, its loggers, runc. A stopped
//! shim delays only its own pod.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::node::{container, container_id};
use limpet_tests::process::{self, signal_pid};
use limpet_tests::{TestNode, agent, suite, wait};
use rustix::process::Signal;

use crate::fault::{self, Fault, Harm, Moment};
use crate::inventory::shims;
use crate::kills::lives;
use crate::proxy::Call;
use crate::rig::{Rig, deadline};
use crate::subject::{Kind, Phase, Subject};

pub(crate) fn processes_killed_at_every_step(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, Some(deadline()))?;
    let mut subject = Subject::new(rig.node, "web", Kind::Lasting, 1)?;
    lives(&mut rig, &mut subject, faults)?;
    eprintln!("{} faults injected", rig.injected);
    if fault::is_a_selection()? {
        return Ok(());
    }
    for harm in [Harm::KillContainerd, Harm::KillShim, Harm::KillLogger, Harm::KillRunc].into_iter().filter(is_there) {
        eprintln!("{harm}: {} processes", rig.signalled(harm));
        ensure!(rig.signalled(harm) > 0, "{harm} has never found a process to kill");
    }
    Ok(())
}

/// Whether a pod has the process that is harmed: limpet's shim writes the logs itself.
fn is_there(harm: &Harm) -> bool {
    *harm != Harm::KillLogger || !agent::has_limpets_shim()
}

/// Each process at each call; in an ordinary run one of them at some calls.
fn faults(phase: Phase, calls: &[Call]) -> Vec<Fault> {
    let mut planned = Vec::new();
    for (place, call) in calls.iter().filter(|call| call.method != "Events.Publish").enumerate() {
        let fault = |harm, moment| Fault { phase, method: call.method.clone(), number: call.number, harm, moment };
        let harms: &[Harm] = match call.method.as_str() {
            // The plugin's wrapper can only harm the agent.
            method if method.starts_with("cni.") => &[Harm::Fail],
            "Tasks.Create" | "Tasks.Start" | "Tasks.Delete" => {
                &[Harm::KillRunc, Harm::KillContainerd, Harm::KillShim, Harm::KillLogger]
            }
            _ => &[Harm::KillContainerd, Harm::KillShim, Harm::KillLogger],
        };
        let harms: Vec<Harm> = harms.iter().copied().filter(is_there).collect();
        if suite::is_long() {
            for harm in &harms {
                planned.extend([Moment::Before, Moment::After].map(|moment| fault(*harm, moment)));
            }
        } else if harms.contains(&Harm::KillRunc) && call.number == 1 {
            planned.push(fault(Harm::KillRunc, Moment::Before));
        } else if place % 8 == phase as usize % 8 {
            let moment = if place % 2 == 0 { Moment::Before } else { Moment::After };
            planned.push(fault(harms[place / 8 % harms.len()], moment));
        }
    }
    planned
}

pub(crate) fn a_stopped_shim_holds_up_its_own_pod_only(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, Some(deadline()))?;
    let mut stopped = Subject::new(rig.node, "stopped", Kind::Lasting, 1)?;
    let mut other = Subject::new(rig.node, "other", Kind::Lasting, 2)?;
    rig.round(&mut stopped, Phase::Start, None)?;
    let digits = stopped.digits();
    let shim_of_pod =
        shims(&rig.node.containerd.socket()).into_iter().find(|(_, id)| digits.iter().any(|end| id.ends_with(end)));
    let (shim, _) = shim_of_pod.context("the pod has no shim")?;

    signal_pid(shim, Signal::STOP);
    stopped.begin(rig.node, Phase::Image)?;
    let full = rig.node.full_name("stopped");
    let said = || -> Result<String> {
        let table = rig.node.agent.cli(&["pods"])?.success()?;
        Ok(table + &rig.node.agent.cli(&["describe", &full])?.success()?)
    };
    let reported = || said().is_ok_and(|text| text.matches("Tasks.Kill").count() >= 2);
    wait::until_true(wait::SOON, "a report of the call that hangs", reported)
        .with_context(|| format!("{:?}", said()))?;
    for phase in [Phase::Start, Phase::Image, Phase::Crash, Phase::Recreate, Phase::Delete] {
        other.begin(rig.node, phase)?;
        let done = || rig.node.pods().and_then(|pods| other.judge(&pods, rig.node));
        wait::until_true(wait::SOON, &format!("the other pod: {}", phase.name()), || done().is_ok())
            .with_context(|| format!("{:?}", done()))?;
    }
    let state = process::checked(Command::new("ps").args(["-o", "state=", "-p", &shim.to_string()]))?;
    ensure!(state.trim() == "T", "the shim was not stopped meanwhile: {state}");

    signal_pid(shim, Signal::CONT);
    rig.settle(&[&stopped, &other], None)
}

/// A process ends while its shim is stopped, so that only the kernel reports it, and not containerd.
pub(crate) fn a_shim_that_does_not_tell_of_an_end_is_named(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, None)?;
    let mut silent = Subject::new(rig.node, "silent", Kind::Lasting, 1)?;
    rig.round(&mut silent, Phase::Start, None)?;
    let digits = silent.digits();
    let shim_of_pod =
        shims(&rig.node.containerd.socket()).into_iter().find(|(_, id)| digits.iter().any(|end| id.ends_with(end)));
    let (shim, _) = shim_of_pod.context("the pod has no shim")?;
    let id = container_id(&rig.node.wait_running("silent")?, "main")?;
    let task = rig.node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
    signal_pid(shim, Signal::STOP);
    signal_pid(task.pid, Signal::KILL);
    let table = || rig.node.agent.cli(&["pods"])?.success();
    let reported =
        || table().is_ok_and(|text| text.contains("container main has ended, but its shim has not reported that"));
    wait::until_true(wait::SOON, "a report of the shim", reported).with_context(|| format!("{:?}", table()))?;
    signal_pid(shim, Signal::CONT);
    silent.lenient = true;
    rig.node.wait_pod("silent", "restarted", |pod| container(pod, "main")["restartCount"] == 1)?;
    rig.settle(&[&silent], None)
}
