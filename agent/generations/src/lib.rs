//! Generations: a change of a source's manifests takes effect on trial, and is undone if it does not work.
//!
//! [`Generations`] stands between the sources' snapshots and the controllers of workloads. In: snapshots, observed pods,
//! what it remembers, the time. Out: the snapshots in effect, what is to be remembered, what is to be done (images to get,
//! a check to run, pods to restart), and the next moment at which something changes by itself. Pure: no I/O, no clock, no
//! tasks. A source whose policy is off is not looked at.
//!
//! The merge loop of `limpet-worker` drives it. What it decides is on disk before it takes effect, so that a power cut at
//! any step leads to the generation before or to the new one, each as a whole.

mod archive;
mod boot;
mod content;
mod generations;
mod masked;
mod notice;
mod readiness;
mod settings;
mod source;
mod state;
mod view;

pub use archive::{Archive, Save, StoredManifest};
pub use content::Content;
pub use generations::{Generations, Order, OrderError, RollbackOrder};
pub use notice::Notice;
pub use readiness::Facts;
pub use settings::{CheckAction, Policies, Policy, Settings};
pub use source::{Image, Preparation};
pub use state::{Generation, Outcome, State, Trial};
pub use view::{GenerationContent, GenerationView, SourceGenerationsView};

use std::time::Duration;

use jiff::Timestamp;

/// The present moment by two clocks. Deadlines count by the first one, since the other may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since the start of the kernel, without the time in which the machine was suspended. Also counts across starts of
    /// the agent.
    pub uptime: Duration,
    /// By the node's clock, which may be wrong: for people only.
    pub wall: Timestamp,
}
