//! The executable of limpet's shim.

use std::process::ExitCode;

fn main() -> ExitCode {
    limpet_shim::main()
}
