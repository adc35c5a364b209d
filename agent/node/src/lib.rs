//! The machine on which pods run.
//!
//! [`agent_lock`] makes this agent the only one; [`kernel_settings`] checks the kernel's settings, and
//! [`capabilities`] drops those that the agent does not need. [`machine_facts`] and [`capacity`] read the machine;
//! [`network`] follows its addresses; [`allocatable`] limits pods. [`name_service`] resolves names without the C
//! library. [`settings`] has the configuration of all this.

pub mod agent_lock;
pub mod allocatable;
pub mod capabilities;
pub mod capacity;
pub mod kernel_settings;
pub mod machine_facts;
pub mod name_service;
pub mod network;
pub mod settings;

pub use agent_lock::{NodeLock, OtherAgent, StartError, other_agent};
pub use machine_facts::MachineFacts;
