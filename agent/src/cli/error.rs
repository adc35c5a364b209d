//! The errors of subcommands, with their exit codes.

use std::io;
use std::path::PathBuf;

/// Faults were found, or the requested object does not exist.
pub const EXIT_FAULTS: u8 = 1;
/// Invalid usage; for `diff`, whose 1 means a difference, also errors.
pub const EXIT_USAGE: u8 = 2;
/// The agent cannot be reached.
pub const EXIT_UNREACHABLE: u8 = 3;
/// Permission denied.
pub const EXIT_FORBIDDEN: u8 = 4;

/// Why a subcommand failed. Printed once, by `cli::main`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// No process listens on the socket.
    #[error("limpet is not running (no socket at {}): start it with: systemctl start limpet", socket.display())]
    NotRunning {
        /// The socket's path.
        socket: PathBuf,
    },
    /// The socket exists, but the user may not use it.
    #[error("not allowed to talk to limpet at {}: run this as root", socket.display())]
    Forbidden {
        /// The socket's path.
        socket: PathBuf,
    },
    /// The connection failed.
    #[error("connection to limpet at {} failed: {message}", socket.display())]
    Connection {
        /// The socket's path.
        socket: PathBuf,
        /// The library's message.
        message: String,
    },
    /// The agent responded with an error; the message is its own.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The agent's message.
        message: String,
    },
    /// An unreadable response.
    #[error(
        "limpet's response to {path} cannot be read: {message}; do the agent and this command have the same version?"
    )]
    Answer {
        /// The requested path.
        path: String,
        /// What is wrong with the response.
        message: String,
    },
    /// No such pod or container, or several: the message lists the candidates.
    #[error("{0}")]
    Target(String),
    /// A usage error that only the subcommand detects.
    #[error("{0}")]
    Usage(String),
    /// Stdout or stderr cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Any other error of this machine.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl CliError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotRunning { .. } | Self::Connection { .. } | Self::Answer { .. } => EXIT_UNREACHABLE,
            Self::Forbidden { .. } => EXIT_FORBIDDEN,
            Self::Usage(_) => EXIT_USAGE,
            // The reader closed the pipe, as in `limpet pods | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Refused { .. } | Self::Target(_) | Self::Output(_) | Self::System { .. } => EXIT_FAULTS,
        }
    }

    /// Whether the error needs no message because the reader is gone.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
