//! Lifecycle events of containers that the agent did not cause itself.

use jiff::Timestamp;

use crate::container::ContainerId;
use crate::process::{ProcessName, Sender};

/// A lifecycle event for the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifecycleEvent {
    /// The subscription to containerd's events is established, so the whole state has to be read now.
    Connected,
    /// The event stream ended because containerd is gone. Containers keep running.
    Disconnected,
    /// A container's first process exited.
    Exited {
        id: ContainerId,
        /// The process, 0 if unknown. A container that had to be created again has had several.
        pid: u32,
        code: i32,
        /// The exit time by the shim's clock.
        at: Timestamp,
    },
    /// The kernel OOM-killed a process in the container.
    OutOfMemory { id: ContainerId },
    /// The OOM-killed process, as the kernel reports it.
    OutOfMemoryVictim { id: ContainerId, victim: ProcessName },
    /// A terminating signal was sent to the container's first process.
    Signalled { id: ContainerId, sender: Sender },
}

impl LifecycleEvent {
    /// The container it is about; `None` for events of the connection.
    pub fn container(&self) -> Option<&ContainerId> {
        match self {
            Self::Connected | Self::Disconnected => None,
            Self::Exited { id, .. }
            | Self::OutOfMemory { id }
            | Self::OutOfMemoryVictim { id, .. }
            | Self::Signalled { id, .. } => Some(id),
        }
    }
}
