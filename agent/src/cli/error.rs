//! What may go wrong in a subcommand, and with which exit code it ends.

use std::io;
use std::path::PathBuf;

/// Faults were found, or the thing asked for is not there.
pub const EXIT_FAULTS: u8 = 1;
/// The command line makes no sense; for `diff`, whose 1 means a difference, also what it cannot judge.
pub const EXIT_USAGE: u8 = 2;
/// The agent cannot be reached.
pub const EXIT_UNREACHABLE: u8 = 3;
/// The user may not.
pub const EXIT_FORBIDDEN: u8 = 4;

/// Why a subcommand ended early. Shown once, by `cli::main`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Nobody answers on the socket.
    #[error("limpet is not running (no socket at {}): start it with: systemctl start limpet", socket.display())]
    NotRunning {
        /// The socket's path.
        socket: PathBuf,
    },
    /// The socket is there and the user may not use it.
    #[error("not allowed to talk to limpet at {}: run this as root", socket.display())]
    Forbidden {
        /// The socket's path.
        socket: PathBuf,
    },
    /// The connection failed or broke.
    #[error("talk to limpet at {}: {message}", socket.display())]
    Connection {
        /// The socket's path.
        socket: PathBuf,
        /// What the library says.
        message: String,
    },
    /// The agent answered, but not what was asked for; the text is its own.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The agent's words.
        message: String,
    },
    /// An answer that cannot be read.
    #[error("limpet's answer to {path} cannot be read: {message}; do the agent and this command have one version?")]
    Answer {
        /// What was asked.
        path: String,
        /// What is wrong with the answer.
        message: String,
    },
    /// No such pod or container, or several: the text names the candidates.
    #[error("{0}")]
    Target(String),
    /// The command line makes no sense in a way that only the subcommand sees.
    #[error("{0}")]
    Usage(String),
    /// Standard output or error cannot be written.
    #[error("write the output: {0}")]
    Output(#[from] io::Error),
    /// Anything else on this machine.
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
            // The reader of a pipe had enough: that is how `limpet pods | head -1` ends.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Refused { .. } | Self::Target(_) | Self::Output(_) | Self::System { .. } => EXIT_FAULTS,
        }
    }

    /// Whether there is nobody left to tell.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
