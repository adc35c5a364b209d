//! `limpet run`: from the command line to a node that is this agent's alone. What runs then is composed in `app`.
//!
//! Exit codes: 0 stopped as asked; 1 the machine refuses (disk, database); 2 usage or configuration; 4 not allowed;
//! 5 another agent runs on this node.

pub mod logging;

use std::process::ExitCode;

use crate::app::{self, Prepared};
use crate::config::{self, RunFlags};
use crate::lifecycle::memory;
use crate::node::{self, NameNotice, StartError};

/// Runs the agent until it is asked to stop; returns the exit code.
pub fn run(flags: &RunFlags) -> ExitCode {
    memory::keep_little();
    if let Err(error) = forbid_core_dumps() {
        return refuse(&error, 1);
    }
    let prepared = match prepare(flags) {
        Ok(prepared) => prepared,
        Err(error) => return refuse(&error, error.exit_code()),
    };
    // One thread: an idle agent has one stack and wakes one thread.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&error, 1),
    };
    let ended = runtime.block_on(app::run(prepared));
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error, 1),
    }
}

/// The agent holds Secrets: its memory goes into no core dump, to a file or to a collector, and only root may look into
/// it. What the agent executes begins as usual. As root it keeps all it needs of its own `/proc/self`.
fn forbid_core_dumps() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

fn refuse(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// Judges flags and file, begins the log, and takes the node. Blocking, and before any task.
///
/// # Errors
/// Whatever refuses the start, with an exit code of its own; the message is for people, on stderr.
pub fn prepare(flags: &RunFlags) -> Result<Prepared, StartError> {
    let (config, warnings) = config::load(flags)?;
    logging::init(config.verbosity);
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    let lock = node::guard(&config)?;
    node::capabilities::drop_unneeded(&config);
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (name, notice) = node::settle_name(&config.root_dir, config.hostname_override.as_deref(), &host_name)?;
    match notice {
        None => {}
        Some(NameNotice::Settled) => tracing::info!(node = %name, "node name settled"),
        Some(NameNotice::HostRenamed { host_name }) => {
            tracing::warn!(node = %name, host_name, "the host has another name now, the node keeps its own");
        }
        Some(NameNotice::Damaged) => tracing::error!(node = %name, "the kept node name was damaged, settled anew"),
    }
    let node = node::facts(&config, name);
    Ok(Prepared { config, node, lock })
}
