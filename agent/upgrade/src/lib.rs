//! Upgrades and downgrades of limpet: the version of what one agent leaves for the next ([`state_version`]).

mod durable;
pub mod state_version;
