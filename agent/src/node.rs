//! The node: its name, determined once; its facts; its addresses; what of it is for pods; the lock that makes this agent
//! the only one; the agent's capabilities; its resolver.

pub mod agent_lock;
pub mod allocatable;
pub mod capabilities;
pub mod capacity;
pub mod facts;
pub mod name;
pub mod name_service;
pub mod network;

pub use agent_lock::{NodeLock, OtherAgent, StartError, guard, other_agent};
pub use facts::facts;
pub use name::{NameError, NameNotice, settle_name};
