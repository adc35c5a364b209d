//! The standard input of a container without a terminal: calls the OCI runtime with the container's FIFO as its own
//! input.
//!
//! containerd's shim gives a process whose output goes to a logger no input. So for a container with `stdin`, the
//! shim's runtime is a symbolic link to limpet's executable in the container's [`AttachPoint`]. It opens the FIFO
//! beside the link and executes the real runtime; runc passes its own input on to the process that it creates. As
//! with a terminal, the shim holds the FIFO's other end open, so neither agent nor containerd is needed to keep it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Mode, OFlags};

use crate::attach::{AttachPoint, RUNTIME_WITH_STDIN};

/// The subcommand of an OCI runtime that starts the process.
const CREATE: &str = "create";

/// The container's directory, if this process was started as a runtime. Call it early in `main`, because the shim is
/// waiting.
pub fn invoked() -> Option<PathBuf> {
    directory_of(std::env::args_os().next()?)
}

fn directory_of(program: OsString) -> Option<PathBuf> {
    let program = PathBuf::from(program);
    let is_link = program.is_absolute() && program.file_name().is_some_and(|name| name == RUNTIME_WITH_STDIN);
    is_link.then(|| program.parent().map(Path::to_owned)).flatten()
}

/// Executes the real runtime with this process's arguments.
pub fn main(directory: &Path) -> ExitCode {
    let failed = match execute(directory) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // The shim puts it into the error message of the failed call.
    eprintln!("start the OCI runtime for {}: {failed}", directory.display());
    ExitCode::FAILURE
}

fn execute(directory: &Path) -> io::Result<std::convert::Infallible> {
    let point = AttachPoint::at(directory);
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let runtime = point.runtime()?;
    if arguments.iter().any(|argument| argument == CREATE) {
        take_input(&point.stdin())?;
    }
    Err(Command::new(runtime).args(arguments).exec())
}

/// Makes the FIFO this process's input. Opening it this way does not wait for a writer; reading does.
fn take_input(fifo: &Path) -> io::Result<()> {
    let input = rustix::fs::open(fifo, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::fcntl_setfl(&input, OFlags::empty())?;
    Ok(rustix::stdio::dup2_stdin(&input)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_alone_makes_the_executable_a_runtime() {
        let table = [
            ("/run/limpet/attach/c1/runtime-with-stdin", Some("/run/limpet/attach/c1")),
            ("runtime-with-stdin", None),
            ("/usr/bin/limpet", None),
            ("/run/runtime-with-stdin/limpet", None),
        ];
        for (program, directory) in table {
            assert_eq!(directory_of(program.into()), directory.map(PathBuf::from), "{program}");
        }
    }
}
