//! What happens to containers without the agent's doing, one event at a time.

use jiff::Timestamp;

use crate::container::ContainerId;
use crate::process::{ProcessName, Sender};

/// Something the supervisor must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifecycleEvent {
    /// The subscription to containerd's events stands: read the whole state now.
    Connected,
    /// The stream ended: containerd is gone, containers live on.
    Disconnected,
    /// A container's first process ended.
    Exited {
        /// The container.
        id: ContainerId,
        /// The process, 0 when that is not known: a container that had to be made again has had several.
        pid: u32,
        /// Its exit code.
        code: i32,
        /// When, by the shim's clock.
        at: Timestamp,
    },
    /// The kernel killed something in the container for lack of memory.
    OutOfMemory {
        /// The container.
        id: ContainerId,
    },
    /// Which process it killed, as the kernel itself reports.
    OutOfMemoryVictim {
        /// The container.
        id: ContainerId,
        /// The process.
        victim: ProcessName,
    },
    /// A signal that ends processes was sent to the container's first process.
    Signalled {
        /// The container.
        id: ContainerId,
        /// Who sent it.
        sender: Sender,
    },
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
