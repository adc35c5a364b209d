//! What keeps the agent from starting after configuration and node are settled.

use std::io;

use crate::executor::containerd::compose::ComposeError;
use crate::manifest_guard::ArmError;
use limpet_model::error_chain::error_chain;
use limpet_server::ServerError;
use limpet_store::StoreError;

/// Why the agent did not start. Each message says what to fix.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// SIGTERM and SIGINT cannot be handled.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    /// The path of limpet's own executable, which the loggers run, is not available.
    #[error("cannot find the path of this executable: {0}")]
    Executable(#[source] io::Error),
    /// A socket is in use or refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The environment in which pods run is not available.
    #[error(transparent)]
    Executor(#[from] ComposeError),
    /// A guard is required, but not available.
    #[error(transparent)]
    Guard(#[from] ArmError),
    /// The database's file cannot be used.
    #[error("the database cannot be used: {}", error_chain(.0))]
    Store(#[from] StoreError),
    /// A task of the start panicked or was cancelled.
    #[error("{0} failed: {1}")]
    Died(&'static str, #[source] tokio::task::JoinError),
}
