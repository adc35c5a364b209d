//! Services that a node's own sources define: which addresses they have, which pods are behind them, the rules by which the
//! kernel passes connections on, and the names by which pods find them.
//!
//! The decisions are pure: [`addresses`] assigns addresses and ports of the node, [`membership`] finds the pods of each Service,
//! [`rules`] says what the kernel is to do, and [`zone`] what names exist. [`task`] has the kernel do it ([`kernel`], by a [`backend`]) and answers
//! queries ([`dns`]). [`feed`] passes it the Services from within the merge loop. [`links`] has the variables of containers.
//!
//! Without a Service there is no task, no socket and no rule.

pub mod addresses;
pub mod backend;
pub mod cidr;
mod conntrack;
mod dns;
mod document;
#[cfg(any(test, feature = "fixtures"))]
pub mod fake;
pub mod feed;
mod kernel;
pub mod links;
mod local_network;
pub mod membership;
mod netlink;
mod nftables;
pub mod rules;
mod saved_addresses;
pub mod settings;
mod table_removal;
pub mod task;
pub mod zone;

pub use kernel::{KernelError, examine};
pub use settings::Settings;
