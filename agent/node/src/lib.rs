//! The machine that pods run on.
//!
//! [`agent_lock`] makes this agent the only one; [`kernel_settings`] checks the
//! kernel's settings, and [`capabilities`] drops those that the agent does not need. [`machine_facts`] and [`capacity`]
//! read the machine; [`network`] follows its addresses; [`allocatable`] limits what pods get. [`name_service`] resolves
//! names without the C library. What is configured of all this is in [`settings`].

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
