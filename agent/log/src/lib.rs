//! Writes container logs in kubelet's layout: CRI lines, rotation, and clients that follow live output.
//!
//! Both the logger process beside a container of containerd's runc shim and limpet's own shim use it. They live as
//! long as containers, so this crate keeps few dependencies.

pub mod config;
pub mod container_log;
pub mod directory;
pub mod output_socket;
pub mod writer;

/// When a container's log is rotated (kubelet's `containerLogMaxSize`, `containerLogMaxFiles`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// The size in bytes at which a new file is started.
    pub max_size: u64,
    /// The number of files that are kept, including the current one.
    pub max_files: u32,
}
