//! The node the agent stands on: its name, settled once; its facts; and the lock that makes this agent the only one; the
//! capabilities it keeps; how it resolves host names.

pub mod capabilities;
pub mod facts;
pub mod guard;
pub mod name;
pub mod name_service;

pub use facts::facts;
pub use guard::{NodeLock, OtherAgent, StartError, guard, other_agent};
pub use name::{NameError, NameNotice, settle_name};
