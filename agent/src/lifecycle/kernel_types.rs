//! Where the running kernel keeps what BPF programs read. Its own description takes 50 MiB to read, which would stay with the
//! agent: limpet's executable is started once more for it, and only what it found comes back.

use std::process::{Command, ExitCode, Stdio};

use limpet_bpf::Kernel;

/// The argument that makes the executable read the description and end.
const ARGUMENT: &str = "kernel-types";

/// Whether this process was started to read the description. To be asked in `main`.
pub fn invoked() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == ARGUMENT) && arguments.next().is_none()
}

/// Reads the description and prints what was found.
pub fn main() -> ExitCode {
    print!("{}", Kernel::read().tell());
    ExitCode::SUCCESS
}

/// What a process of its own has found. Blocks for some hundredths of a second.
pub fn read() -> Kernel {
    let mut command = Command::new("/proc/self/exe");
    command.arg(ARGUMENT).stdin(Stdio::null()).stderr(Stdio::null());
    match command.output() {
        Ok(output) => Kernel::told(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => {
            tracing::warn!(%error, "the kernel's types are not read");
            Kernel::told("")
        }
    }
}
