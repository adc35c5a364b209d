//! The errors of subcommands, with their exit codes.

use std::io;

use limpet_wire::socket_client::ClientError;

/// Faults were found, or the requested object does not exist.
pub const EXIT_FAULTS: u8 = 1;
/// Invalid usage; for `diff`, whose 1 means a difference, also errors.
pub const EXIT_USAGE: u8 = 2;
/// The agent cannot be reached.
pub const EXIT_UNREACHABLE: u8 = 3;
/// Permission denied.
pub const EXIT_FORBIDDEN: u8 = 4;

/// Why a subcommand failed. The executable prints it once.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No pod or container matches, or several do: the message lists the candidates.
    #[error("{0}")]
    Target(String),
    /// A usage error that only the subcommand detects.
    #[error("{0}")]
    Usage(String),
    /// Stdout or stderr cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Any other error on this machine.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        source: io::Error,
    },
}

impl CliError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Client(error) => match error {
                ClientError::NotRunning { .. } | ClientError::Connection { .. } | ClientError::Answer { .. } => {
                    EXIT_UNREACHABLE
                }
                ClientError::Forbidden { .. } => EXIT_FORBIDDEN,
                ClientError::Request(_) => EXIT_USAGE,
                ClientError::Refused { .. } => EXIT_FAULTS,
            },
            Self::Usage(_) => EXIT_USAGE,
            // The reader closed the pipe, as in `limpet pods | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Target(_) | Self::Output(_) | Self::System { .. } => EXIT_FAULTS,
        }
    }

    /// Whether the error needs no message because the reader is gone.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
