//! The node. `facts` and `capacity` read the machine; `description` is what its Node object says of it; `network` watches
//! its addresses; `allocatable` limits what pods get; `kernel_settings` checks the kernel's; `agent_lock` makes this
//! agent the only one; `capabilities` drops the agent's unneeded capabilities; `name_service` resolves names without the
//! C library.

pub mod agent_lock;
pub mod allocatable;
pub mod capabilities;
pub mod capacity;
pub mod description;
pub mod facts;
pub mod kernel_settings;
pub mod name_service;
pub mod network;

pub use agent_lock::{NodeLock, OtherAgent, StartError, guard, other_agent};
pub use facts::facts;
