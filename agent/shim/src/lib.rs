//! limpet's shim for containerd: `containerd-shim-limpet-v1`.
//!
//! containerd runs it for each new container (`start`), and it starts itself again as the process that serves a pod,
//! with containerd's runtime protocol in versions 2 and 3. That process calls the OCI runtime, writes the containers'
//! logs, copies the streams of commands, and records exits. It has one thread, no async runtime, and no buffers while
//! nothing happens: `docs/shim.md` has the figures.

mod arguments;
mod bundle;
mod cgroup;
mod cleanup;
mod client;
mod console;
mod diagnostics;
mod exit;
mod failure;
pub mod fuzz;
mod info;
mod logger_program;
mod messages;
mod metrics;
mod poller;
mod process;
mod publisher;
mod rootfs;
mod runtime;
mod serve;
mod shim;
mod signal;
mod start;
mod stdio;
mod transfer;
mod ttrpc;

use std::io::{self, Write as _};
use std::process::ExitCode;

use prost::Message as _;

use self::arguments::Arguments;

/// The shim's program: serves, or does what its arguments say.
pub fn main() -> ExitCode {
    let done =
        Arguments::parse(std::env::args_os().skip(1)).map_err(io::Error::other).and_then(|arguments| run(&arguments));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("containerd-shim-limpet-v1: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let mut stdout = io::stdout();
    if arguments.version {
        return writeln!(stdout, "containerd-shim-limpet-v1 {}", env!("CARGO_PKG_VERSION"));
    }
    if arguments.info {
        return stdout.write_all(&info::info().encode_to_vec());
    }
    if arguments.namespace.is_empty() || arguments.id.is_empty() {
        let message = "it is started by containerd, with -namespace and -id";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let directory = std::env::current_dir()?;
    let bundle = arguments.bundle.clone().unwrap_or(directory);
    match arguments.action.as_str() {
        "" => serve::serve(arguments, &bundle),
        "start" => stdout.write_all(start::start(arguments, &bundle)?.as_bytes()),
        "delete" => {
            let response = cleanup::clean_up(&arguments.id, &bundle, &arguments.namespace)?;
            stdout.write_all(&response.encode_to_vec())
        }
        other => {
            let message = format!("the action {other} is unknown; it is start or delete");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}
