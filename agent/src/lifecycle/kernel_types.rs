//! The kernel's structure offsets that BPF programs need, read from BTF in a child process: parsing takes 50 MiB, which
//! would stay allocated in the agent, so limpet's executable is started again and prints only the offsets.

use std::process::{Command, ExitCode, Stdio};

use limpet_bpf::Kernel;

/// The argument with which the executable reads BTF and exits.
const ARGUMENT: &str = "kernel-types";

/// Whether this process was started to read BTF. Call it in `main`.
pub fn invoked() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == ARGUMENT) && arguments.next().is_none()
}

/// Reads BTF and prints the offsets.
pub fn main() -> ExitCode {
    print!("{}", Kernel::read().to_text());
    ExitCode::SUCCESS
}

/// Reads the offsets in a child process. Blocks for some hundredths of a second.
pub fn read() -> Kernel {
    let mut command = Command::new("/proc/self/exe");
    command.arg(ARGUMENT).stdin(Stdio::null()).stderr(Stdio::null());
    match command.output() {
        Ok(output) => Kernel::from_text(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => {
            tracing::warn!(%error, "reading the kernel's BTF failed");
            Kernel::from_text("")
        }
    }
}
