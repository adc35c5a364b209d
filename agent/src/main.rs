//! The `limpet` executable.

use std::process::ExitCode;

use limpet::lifecycle::kernel_types;
use limpet_containerd::stdin;
use limpet_host::orphan_processes;
use limpet_host::sandbox::{init, users};
use limpet_log::writer;
use limpet_upgrade::{guardian, starter};

fn main() -> ExitCode {
    // A container's logger, started by containerd's shim: checked first, because it must stay tiny.
    if let Some(logger) = writer::invoked() {
        return writer::main(&logger, |container| orphan_processes::end_others("CONTAINER_ID", container));
    }
    // These must be small and quick, too: the OCI runtime of a container with an input, the init of a pod's shared
    // PID namespace, and the program that makes a pod's user namespace.
    if let Some(directory) = stdin::invoked() {
        return stdin::main(&directory);
    }
    if let Some(stage) = init::invoked() {
        return init::main(&stage);
    }
    if users::invoked() {
        return users::main();
    }
    if let Some(invocation) = guardian::invoked() {
        return guardian::main(invocation);
    }
    // Another version may have to run.
    starter::start_version();
    if kernel_types::invoked() { kernel_types::main() } else { limpet::cli::main() }
}
