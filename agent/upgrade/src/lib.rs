//! Upgrades and downgrades of limpet.
//!
//! [`state_version`] is the version of what one agent leaves for the next. [`command`] is `limpet upgrade`: it stages a signed
//! version beside the present one and restarts the agent. [`starter`] runs first of `limpet run` and starts the version that
//! the journal names; [`guardian`] watches a version on trial; [`report`] says how it ended. The decisions are pure
//! functions in `plan`. Each process may be killed, and the power cut, at any moment: one of both versions runs.

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
