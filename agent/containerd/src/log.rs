//! Container logs: paths, writer and reader.
//!
//! The writer is a process beside each container (`writer`); the agent only reads, and only on request. Both use kubelet's
//! layout and the CRI line format, so log collectors for kubelet find and read them.

mod directory;
mod entry;
pub mod follow;
mod logger;
pub mod paths;
mod read_options;
pub mod reader;
mod render;
mod start;
pub mod writer;

pub use entry::LogStream;
pub use paths::{LogPaths, newest_attempt, previous_attempt, remove_log};
pub use read_options::ReadOptions;
pub use reader::{exists, open, read, tail_for_termination_message};

/// When a container's log is rotated (kubelet's `containerLogMaxSize`, `containerLogMaxFiles`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// Bytes after which a new file is started.
    pub max_size: u64,
    /// Files retained, the one being written included.
    pub max_files: u32,
}
