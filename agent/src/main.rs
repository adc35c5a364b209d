//! The `limpet` executable.

use std::process::ExitCode;

use limpet::lifecycle::kernel_types;
use limpet_containerd::log::writer;

fn main() -> ExitCode {
    // A container's logger, started by containerd's shim: checked first, because it must stay tiny.
    match writer::invoked() {
        Some(value) => writer::main(&value),
        None if kernel_types::invoked() => kernel_types::main(),
        None => limpet::cli::main(),
    }
}
