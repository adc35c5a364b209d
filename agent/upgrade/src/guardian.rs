//! The guardian of a version on trial: a process of the previous version, beside the new agent. It asks the new agent
//! for the node's state, and accepts it, or kills it so that init starts the previous version again.
//!
//! It ends with the trial or the agent: when the agent ends, the next start decides.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use limpet_host::inotify::register;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};
use tokio::io::Interest;

use crate::health;
use crate::journal::{Journal, Step};
use crate::plan::{self, Attempt, Verdict};
use crate::slot::Slot;

/// The first arguments of its two processes: the first ends immediately, so that the second is not a child of the
/// agent.
const LAUNCH: &str = "upgrade-guardian-launch";
const WATCH: &str = "upgrade-guardian";
/// How often the new agent is asked during the trial, because its socket has no event for this.
const PERIOD: Duration = Duration::from_millis(500);
/// The deadline of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The role of this process.
#[derive(Debug)]
pub enum Invocation {
    Launch(PathBuf),
    Watch { agent: Pid, slot: PathBuf },
}

/// How this process was started, if as a guardian. Call it first in `main`.
pub fn invoked() -> Option<Invocation> {
    let mut arguments = std::env::args_os().skip(1);
    let kind = arguments.next()?;
    if kind == LAUNCH {
        return Some(Invocation::Launch(arguments.next()?.into()));
    }
    if kind == WATCH {
        let agent = arguments.next()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
        return Some(Invocation::Watch { agent, slot: arguments.next()?.into() });
    }
    None
}

pub fn main(invocation: Invocation) -> ExitCode {
    let done = match invocation {
        Invocation::Launch(slot) => launch(&slot),
        Invocation::Watch { agent, slot } => watch(agent, &Slot::new(&slot)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limpet: the guardian of the upgrade failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a guardian of this process, which becomes the agent. Returns once it watches.
pub(crate) fn spawn(slot: &Slot) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(LAUNCH).arg(slot.directory()).stdin(Stdio::null()).stdout(Stdio::piped());
    // systemd would take its notifications for the agent's.
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    let mut launched = command.spawn()?;
    let mut watching = [0; 1];
    let read = match launched.stdout.take() {
        Some(mut stdout) => stdout.read_exact(&mut watching),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    launched.wait()?;
    read
}

fn launch(slot: &std::path::Path) -> io::Result<()> {
    let agent = getppid().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WATCH).arg(agent.as_raw_nonzero().to_string()).arg(slot).process_group(0);
    command.spawn().map(drop)
}

fn watch(agent: Pid, slot: &Slot) -> io::Result<()> {
    // The agent waits for the byte below, so the PID is still its own.
    let pidfd = pidfd_open(agent, PidfdFlags::empty())?;
    // A session of its own, so that no signal of the agent's terminal reaches it.
    let _ = setsid();
    let mut stdout = io::stdout().lock();
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(judge(pidfd, slot))
}

async fn judge(pidfd: OwnedFd, slot: &Slot) -> io::Result<()> {
    let ended = register(pidfd.try_clone()?, Interest::READABLE)?;
    let (begun, mut attempt) = (Instant::now(), Attempt::default());
    loop {
        tokio::select! {
            _ = ended.readable() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
        let Some(journal) = slot.journal()?.filter(|journal| !journal.is_over()) else { return Ok(()) };
        let observed = tokio::time::timeout(ANSWER_TIMEOUT, health::observe(&journal.socket)).await;
        let fault = plan::fault(&journal.baseline, observed.ok().flatten().as_ref());
        match attempt.judge(fault, begun.elapsed(), Duration::from_secs(journal.deadline_seconds)) {
            Verdict::Wait => {}
            Verdict::Accept => return accept(slot),
            Verdict::Undo { reason } => return undo(slot, &pidfd, reason),
        }
    }
}

fn accept(slot: &Slot) -> io::Result<()> {
    let lock = slot.lock()?;
    let Some(journal) = on_trial(slot)? else { return Ok(()) };
    let accepted = journal.at(Step::Accepted);
    slot.write_journal(&accepted)?;
    eprintln!("limpet: limpet {} is accepted", accepted.to);
    slot.install(&lock, accepted)
}

fn undo(slot: &Slot, agent: &OwnedFd, reason: String) -> io::Result<()> {
    let lock = slot.lock()?;
    let Some(journal) = on_trial(slot)? else { return Ok(()) };
    eprintln!("limpet: limpet {} is undone: {reason}", journal.to);
    let recorded = slot.undo(&lock, journal, reason);
    // Killed even if that failed; the attempts are then used up eventually.
    pidfd_send_signal(agent, Signal::KILL)?;
    recorded
}

fn on_trial(slot: &Slot) -> io::Result<Option<Journal>> {
    Ok(slot.journal()?.filter(|journal| matches!(journal.step, Step::Trial { .. })))
}
