//! `limpet run`: reads flags and configuration, sets up logging, locks the node, and runs `app`.
//!
//! Exit codes: 0 stopped on request; 1 error of the machine (disk, database); 2 usage or configuration; 4 permission
//! denied; 5 another agent runs on this node.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use super::logging;
use crate::app::{self, Ended, Prepared};
use crate::config::{self, ConfigError, RunFlags};
use limpet_cli::screen::printable_lines;
use limpet_host::memory;
use limpet_host::node_name::{self, NameError, NameNotice};
use limpet_node::{StartError, agent_lock, capabilities};
use limpet_upgrade::state_version::StateError;
use limpet_upgrade::{starter, state_version};

/// Why there is nothing to run. [`exit_code`](Self::exit_code) depends on the kind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// The configuration is unreadable or invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state belongs to a newer release, or its version cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The machine does not let the agent start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node has no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl PrepareError {
    /// 1: an error of the machine; 2: usage or configuration; 4: permission denied; 5: another agent runs.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Name(NameError::Invalid { .. } | NameError::Differs { .. }) => 2,
            Self::Name(NameError::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => 4,
            Self::State(_) | Self::Name(NameError::Io { .. }) => 1,
            Self::Start(error) => error.exit_code(),
        }
    }
}

/// Runs the agent until a signal stops it; returns the exit code.
pub(crate) fn run(flags: &RunFlags) -> ExitCode {
    if let Err(error) = forbid_core_dumps() {
        return fail(&error, 1);
    }
    let prepared = match prepare(flags) {
        Ok(prepared) => prepared,
        Err(error) => return fail(&error, error.exit_code()),
    };
    // With one thread, an idle agent has only one stack and wakes only one thread.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().thread_stack_size(memory::THREAD_STACK).build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    let result = runtime.block_on(app::run(prepared));
    runtime.shutdown_background();
    match result {
        Ok(Ended::Stopped) => ExitCode::SUCCESS,
        Ok(Ended::ToRestart) => fail(&starter::restart(), 1),
        Err(error) => fail(&error, 1),
    }
}

/// The agent holds Secrets: disable core dumps, and let only root read its memory. Programs that the agent executes are
/// not affected. As root the agent can still access everything it needs in its own `/proc/self`.
fn forbid_core_dumps() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("error: {}", printable_lines(&error.to_string()));
    ExitCode::from(code)
}

/// Validates flags and file, starts logging, and locks the node. Blocks; called before any task.
///
/// # Errors
/// Whatever prevents the start, with its exit code; the message is printed to stderr.
pub(crate) fn prepare(flags: &RunFlags) -> Result<Prepared, PrepareError> {
    let (config, warnings) = config::load(flags)?;
    let verbosity = logging::init(config.verbosity);
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    // Checked before the first change, including the lock's file.
    state_version::check(&config.root_dir)?;
    let lock = agent_lock::take(&config.places(), &config.node)?;
    capabilities::drop_unneeded(config.uses());
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let given = config.node.hostname_override.as_deref();
    let (name, notice) = node_name::settle_name(&config.root_dir, given, &host_name)?;
    match notice {
        None => {}
        Some(NameNotice::Settled) => tracing::info!(node = %name, "node name stored"),
        Some(NameNotice::HostRenamed { host_name }) => {
            tracing::warn!(node = %name, host_name, "the host name has changed, the node keeps its stored name");
        }
        Some(NameNotice::NotStored) => {
            tracing::warn!(node = %name, "the node's name is not stored: the root directory is read-only");
        }
        Some(NameNotice::Damaged) => {
            tracing::error!(node = %name, "the stored node name was damaged, determined again")
        }
    }
    let node = config.node_facts(name);
    let set_verbosity = Arc::new(move |level| verbosity.set(level));
    Ok(Prepared { config, flags: flags.clone(), set_verbosity, node, lock })
}
