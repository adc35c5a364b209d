//! A client's logger: a program that reads a process's output (`binary://`).

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::stdio::LoggerProgram;

/// The deadline for a logger to report that it is ready.
const START: Duration = Duration::from_secs(10);
/// The lowest number for duplicated descriptors, above those that the logger gets.
const ABOVE: i32 = 10;

/// A logger that was started and has not reported that it is ready.
#[derive(Debug)]
pub(crate) struct StartingLogger {
    /// Readable once the logger has written a byte, or has closed its end.
    pub(crate) ready: OwnedFd,
    pub(crate) until: Instant,
}

/// Starts it with `stdout` and `stderr` as descriptors 3 and 4. It reports on 5 that it is ready, or closes it, and ends
/// by itself when both outputs have ended.
pub(crate) fn start(
    program: &LoggerProgram,
    id: &str,
    namespace: &str,
    stdout: OwnedFd,
    stderr: OwnedFd,
) -> io::Result<StartingLogger> {
    let (ready, say_ready) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env_clear().env("CONTAINER_ID", id).env("CONTAINER_NAMESPACE", namespace);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Duplicated, so that none occupies the number of another.
    let moved = [stdout, stderr, say_ready].map(|fd| rustix::io::fcntl_dupfd_cloexec(&fd, ABOVE));
    let [stdout, stderr, say_ready] = moved;
    let inherited = [stdout?, stderr?, say_ready?];
    let numbers = inherited.each_ref().map(OwnedFd::as_raw_fd);
    // SAFETY: between fork and exec the closure only calls dup2, which is async-signal-safe, and allocates nothing. The
    // descriptors 3 to 5 belong to the new process alone, and ManuallyDrop leaves them open for the program.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            for (target, number) in (3..).zip(numbers) {
                let from = std::os::fd::BorrowedFd::borrow_raw(number);
                let mut target = std::mem::ManuallyDrop::new(OwnedFd::from_raw_fd(target));
                rustix::io::dup2(from, &mut target)?;
            }
            Ok(())
        });
    }
    // The shim reaps it with its other children.
    drop(command.spawn()?);
    drop(inherited);
    Ok(StartingLogger { ready, until: Instant::now() + START })
}
