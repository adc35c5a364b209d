//! Exits, signals and OOM victims.

use std::fs;
use std::path::Path;

use limpet_bpf::{Event, Kernel, Purpose, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::machine::{self, CGROUPS};
use crate::{Outcome, act, block_on, event, refused, said};

const LIFECYCLE: Request = Request { lifecycle: true, watch: false, guard: None };

fn exit_of(pid: u32) -> impl Fn(Event) -> Option<Option<u32>> {
    move |event| match event {
        Event::ProcessExit { process, status } if process.pid == pid => Some(status),
        _ => None,
    }
}

pub(crate) fn exits_are_told(kernel: &Kernel) -> Outcome {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(said)?;
    if let Some(reason) = refused(&loaded, Purpose::Lifecycle)? {
        return Ok(Some(reason));
    }
    block_on(async {
        let mut events = loaded.events().map_err(said)?.ok_or("no events")?;
        let mut child = act::start(act::OUTSIDE, "wait", Path::new("/"))?;
        loaded.follow_process(child.id()).map_err(said)?;
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).map_err(said)?;
        let sender = event(&mut events, "the signal", |event| match event {
            Event::Signal { target, signal: 15, by_kernel: false, sender } if target == child.id() => Some(sender),
            _ => None,
        });
        let sender = sender.await?;
        let status = event(&mut events, "the exit", exit_of(child.id())).await?;
        child.wait().map_err(said)?;
        if (sender.pid, sender.uid) != (std::process::id(), 0) {
            return Err(format!("sent by {sender:?}"));
        }
        // Where the kernel lets it be read.
        if status.is_some_and(|status| status & 0x7f != 15) {
            return Err(format!("ended with {status:?}"));
        }
        loaded.forget_process(child.id());
        Ok(None)
    })?
}

pub(crate) fn others_are_silent(kernel: &Kernel) -> Outcome {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(said)?;
    if let Some(reason) = refused(&loaded, Purpose::Lifecycle)? {
        return Ok(Some(reason));
    }
    block_on(async {
        let mut events = loaded.events().map_err(said)?.ok_or("no events")?;
        for _ in 0..20 {
            act::act(act::OUTSIDE, "nothing", Path::new("/"))?;
        }
        let mut last = act::start(act::OUTSIDE, "wait", Path::new("/"))?;
        loaded.follow_process(last.id()).map_err(said)?;
        kill_process(Pid::from_child(&last), Signal::KILL).map_err(said)?;
        last.wait().map_err(said)?;
        // Events come in order: what the others did would be first.
        let first = event(&mut events, "the last exit", Some).await?;
        match first {
            Event::Signal { target, signal: 9, .. } if target == last.id() => Ok(None),
            other => Err(format!("first came {other:?}")),
        }
    })?
}

pub(crate) fn cgroups_are_followed(kernel: &Kernel) -> Outcome {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(said)?;
    block_on(async {
        let mut events = loaded.events().map_err(said)?.ok_or("no events")?;
        let pods = machine::cgroup("followed")?;
        let inner = machine::cgroup("followed/pod/container")?;
        loaded.follow_cgroup(pods).map_err(said)?;
        let mut child = act::start("followed/pod/container", "fail", Path::new("/"))?;
        let (status, process) = event(&mut events, "the exit", |event| match event {
            Event::ProcessExit { process, status } => Some((status, process)),
            _ => None,
        })
        .await?;
        child.wait().map_err(said)?;
        if (process.pid, process.cgroup, status) != (child.id(), inner, Some(3 << 8)) {
            return Err(format!("{process:?} ended with {status:?}, expected {} in {inner}", child.id()));
        }
        Ok(None)
    })?
}

pub(crate) fn victims_are_named(kernel: &Kernel) -> Outcome {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(said)?;
    block_on(async {
        let mut events = loaded.events().map_err(said)?.ok_or("no events")?;
        let id = machine::cgroup("small")?;
        fs::write(Path::new(CGROUPS).join("small/memory.max"), "16M").map_err(said)?;
        let mut child = act::start("small", "grow", Path::new("/"))?;
        let victim = event(&mut events, "the victim", |event| match event {
            Event::OomVictim { process } => Some(process),
            _ => None,
        });
        let victim = victim.await?;
        // The victim's end is told without anybody following it.
        let status = event(&mut events, "its exit", exit_of(child.id())).await?;
        child.wait().map_err(said)?;
        if (victim.pid, victim.cgroup, status) != (child.id(), id, Some(9)) {
            return Err(format!("{victim:?} ended with {status:?}, expected {} in {id}", child.id()));
        }
        Ok(None)
    })?
}
