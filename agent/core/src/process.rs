//! Processes, as far as decisions depend on them: whether one lives. The host's implementation holds pidfds.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use limpet_model::container::ContainerId;

/// A reference to one process that stays valid whoever gets its number later.
pub trait ProcessHandle: fmt::Debug + Send + Sync {
    /// Whether the process has not ended.
    fn is_alive(&self) -> bool;

    /// Resolves when the process has ended, all its threads included. Cancel safe.
    ///
    /// # Errors
    /// Its end cannot be waited for here.
    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
}

/// Looks up processes.
pub trait Processes {
    /// The process that has the number `pid` now, where the kernel gives references to processes.
    fn open(&self, pid: u32) -> Option<Arc<dyn ProcessHandle>>;

    /// Whether the process `pid` is in the container's cgroup: for processes without a handle.
    fn is_in_container(&self, pid: u32, container: &ContainerId) -> bool;
}
