//! Signals, process exits, and OOM victims.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use limpet_bpf::{Event, Kernel, Purpose, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::machine::{self, CGROUPS};
use crate::{CaseResult, SOON, act, block_on, event, refused, to_text};

const LIFECYCLE: Request = Request { lifecycle: true, watch: false, guard: None };

pub(crate) fn exits_are_reported(kernel: &Kernel) -> CaseResult {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(to_text)?;
    if let Some(reason) = refused(&loaded, Purpose::Lifecycle)? {
        return Ok(Some(reason));
    }
    block_on(async {
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        let mut child = act::start(act::OUTSIDE, "wait", Path::new("/"))?;
        loaded.follow_process(child.id()).map_err(to_text)?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(to_text)?;
        kill_process(pid, Signal::TERM).map_err(to_text)?;
        let sender = event(&mut events, "the signal", |event| match event {
            Event::Signal { target, signal: 15, by_kernel: false, sender } if target == child.id() => Some(sender),
            _ => None,
        });
        let sender = sender.await?;
        let limit = Timespec { tv_sec: SOON.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).map_err(to_text)? == 0 {
            return Err("the pidfd does not report the exit".to_owned());
        }
        child.wait().map_err(to_text)?;
        if (sender.pid, sender.uid) != (std::process::id(), 0) {
            return Err(format!("sent by {sender:?}"));
        }
        loaded.forget_process(child.id());
        Ok(None)
    })?
}

/// A process that catches its signals is sent many, and the one that ends it: the agent reads of that one alone.
pub(crate) fn last_signal_is_reported(kernel: &Kernel) -> CaseResult {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(to_text)?;
    if let Some(reason) = refused(&loaded, Purpose::Lifecycle)? {
        return Ok(Some(reason));
    }
    block_on(async {
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        let mut child = act::start(act::OUTSIDE, "ignore signals", Path::new("/"))?;
        loaded.follow_process(child.id()).map_err(to_text)?;
        let pid = Pid::from_child(&child);
        // Blocked, so each stays pending or is dropped: 15 does not end it.
        wait_until_blocked(child.id())?;
        for _ in 0..100_000 {
            kill_process(pid, Signal::TERM).map_err(to_text)?;
        }
        kill_process(pid, Signal::KILL).map_err(to_text)?;
        child.wait().map_err(to_text)?;
        match event(&mut events, "the last signal", Some).await? {
            Event::Signal { target, signal: 9, .. } if target == child.id() && loaded.lost() == 0 => Ok(None),
            other => Err(format!("first came {other:?}, {} were lost", loaded.lost())),
        }
    })?
}

/// Waits until the process has blocked SIGTERM; proc(5), `SigBlk`.
fn wait_until_blocked(process: u32) -> Result<(), String> {
    let start = std::time::Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{process}/status")).map_err(to_text)?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or_default();
        if u64::from_str_radix(blocked.trim(), 16).map_err(to_text)? & (1 << 14) != 0 {
            return Ok(());
        }
        if start.elapsed() > SOON {
            return Err("the child does not block its signals".to_owned());
        }
        std::thread::yield_now();
    }
}

pub(crate) fn others_are_silent(kernel: &Kernel) -> CaseResult {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(to_text)?;
    if let Some(reason) = refused(&loaded, Purpose::Lifecycle)? {
        return Ok(Some(reason));
    }
    block_on(async {
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        for _ in 0..20 {
            act::act(act::OUTSIDE, "nothing", Path::new("/"))?;
        }
        let mut last = act::start(act::OUTSIDE, "wait", Path::new("/"))?;
        loaded.follow_process(last.id()).map_err(to_text)?;
        kill_process(Pid::from_child(&last), Signal::KILL).map_err(to_text)?;
        last.wait().map_err(to_text)?;
        // Events come in order: those of the others would be first.
        let first = event(&mut events, "the last signal", Some).await?;
        match first {
            Event::Signal { target, signal: 9, .. } if target == last.id() => Ok(None),
            other => Err(format!("first came {other:?}")),
        }
    })?
}

pub(crate) fn victims_are_named(kernel: &Kernel) -> CaseResult {
    let mut loaded = kernel.load(&LIFECYCLE).map_err(to_text)?;
    block_on(async {
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        let id = machine::cgroup("small")?;
        fs::write(Path::new(CGROUPS).join("small/memory.max"), "16M").map_err(to_text)?;
        let mut child = act::start("small", "grow", Path::new("/"))?;
        let victim = event(&mut events, "the victim", |event| match event {
            Event::OomVictim { process } => Some(process),
            _ => None,
        });
        let victim = victim.await?;
        let status = child.wait().map_err(to_text)?;
        if (victim.pid, victim.cgroup, status.signal()) != (child.id(), id, Some(9)) {
            return Err(format!("{victim:?} ended with {status:?}, expected {} in {id}", child.id()));
        }
        Ok(None)
    })?
}
