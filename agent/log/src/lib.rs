//! The writing of container logs in kubelet's layout: CRI lines, rotation, and clients that follow live output.
//!
//! Used by the logger process beside a container of containerd's runc shim, and by limpet's own shim, which writes the
//! logs of its pod's containers itself. Both live as long as containers do, so this crate keeps few dependencies.

pub mod config;
pub mod container_log;
pub mod directory;
pub mod output_socket;
pub mod writer;

/// When a container's log is rotated (kubelet's `containerLogMaxSize`, `containerLogMaxFiles`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// Bytes after which a new file is started.
    pub max_size: u64,
    /// Files retained, the one being written included.
    pub max_files: u32,
}
