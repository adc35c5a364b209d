//! What the agent tells `limpet ui`, and what the screen that is shown wants to be told.

use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use crate::server::document::{DescribeDocument, PodChange};
use crate::server::usage::UsageDocument;

/// A pod's namespace and name.
pub(super) type PodId = (String, String);

/// News from the agent.
#[derive(Debug)]
pub(super) enum Feed {
    /// Of the pods.
    Pod(PodChange),
    /// The connection is lost, for this reason.
    Away(String),
    /// Of events: one that is new, or one more of its kind.
    Event(EventsOf, Box<Event>),
    /// A pod as `limpet describe` shows it, or why there is none.
    Detail(DetailOf, Result<Box<DescribeDocument>, String>),
    /// Further lines of a log, printable.
    Log(LogOf, Vec<String>),
    /// A log has no more lines, for this reason.
    LogEnd(LogOf, String),
    /// What is used, or why it is not known.
    Usage(Result<Box<Figures>, String>),
}

/// What the node and its pods use.
#[derive(Debug)]
pub(super) struct Figures {
    /// The reading before.
    pub(super) before: UsageDocument,
    /// The last reading.
    pub(super) after: UsageDocument,
    /// kubelet's Summary.
    pub(super) summary: Value,
}

/// Events that are followed. `epoch` counts connections: what was followed before is begun anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventsOf {
    pub(super) epoch: u64,
    /// Only those about this pod.
    pub(super) pod: Option<PodId>,
}

/// A pod that is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DetailOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
}

/// A log that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
    pub(super) container: String,
    /// That of the instance before.
    pub(super) previous: bool,
    /// The container's id, once it has one: another instance has another log.
    pub(super) instance: Option<String>,
}

/// What the screen shows besides the pods. What is not wanted is not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) events: Option<EventsOf>,
    /// With a number that grows when the description is to be read again.
    pub(super) detail: Option<(DetailOf, u64)>,
    pub(super) log: Option<LogOf>,
    /// The epoch.
    pub(super) usage: Option<u64>,
}
