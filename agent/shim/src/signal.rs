//! Signals to the shim's children, which are the processes of its containers.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::failure::Failure;

/// What runc's child is called until it executes the container's program.
const RUNC_INIT: &[u8] = b"runc:[";
/// How long a signal waits for that, and how often it looks.
const PROGRAM_BEGINS: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Sends a signal to a child that was not reaped, so its PID cannot have been reused.
///
/// # Errors
/// The number is not that of a signal, or the process has ended.
pub(crate) fn send(pid: u32, number: u32) -> Result<(), Failure> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Failure::invalid("a process id"))?;
    let number = i32::try_from(number).ok().filter(|number| (1..=64).contains(number));
    let number = number.ok_or_else(|| Failure::invalid("a signal's number"))?;
    // SAFETY: the number is that of a signal, and it goes to another process: the C library's own signals, which must not
    // be raised in this process, are not.
    #[allow(unsafe_code)]
    let signal = unsafe { Signal::from_raw_unchecked(number) };
    if signal != Signal::KILL {
        await_program(pid);
    }
    match rustix::process::kill_process(process, signal) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::SRCH) => Err(Failure::not_found("process already finished")),
        Err(error) => Err(Failure::unknown(format!("unknown error after kill: {error}"))),
    }
}

/// Waits until a process executes the container's program. `runc start` returns a moment earlier, and a SIGTERM in that
/// moment meets runc itself: as process 1 of a PID namespace it cannot end by it, and Go's runtime then exits with 2. No
/// event reports an execve without a tracer.
fn await_program(pid: u32) {
    let comm = format!("/proc/{pid}/comm");
    let until = Instant::now() + PROGRAM_BEGINS;
    while std::fs::read(&comm).is_ok_and(|name| name.starts_with(RUNC_INIT)) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_signal_waits_until_the_program_is_executed() {
        let directory = tempfile::tempdir().unwrap();
        let runc = directory.path().join("runc:[2:INIT]");
        std::os::unix::fs::symlink("/bin/sh", &runc).unwrap();
        let mut child = Command::new(&runc).args(["-c", "read line; exec cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        while !comm().starts_with("runc:[") {
            std::thread::yield_now();
        }
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        await_program(pid);
        assert_eq!(comm(), "cat\n");
        send(pid, 9).unwrap();
        child.wait().unwrap();
    }
}
