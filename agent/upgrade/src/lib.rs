//! Upgrades and downgrades of limpet.
//!
//! [`state_version`] is the version of what one agent leaves for the next. [`command`] is `limpet upgrade`: it stages
//! a signed version beside the current one and restarts the agent. [`starter`] runs first in `limpet run` and starts
//! the version in the journal; [`guardian`] watches a version on trial; [`report`] reports how it ended. The
//! decisions are pure functions in `plan`. Each process may be killed, and the power cut, at any moment: one of the
//! versions runs.

pub mod command;
mod durable;
mod elf;
pub mod guardian;
mod health;
mod journal;
mod package;
mod plan;
pub mod report;
mod restart;
mod slot;
pub mod starter;
pub mod state_version;

pub use journal::Journal;
pub use slot::Slot;
