//! The data that `limpet ui` receives from the agent, and the data that the current screen needs.

use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use limpet_wire::pods::{DescribeDocument, PodChange};
use limpet_wire::usage::UsageDocument;

/// A pod's namespace and name.
pub(super) type PodId = (String, String);

/// An update from the agent.
#[derive(Debug)]
pub(super) enum Feed {
    /// A change of the pods.
    Pod(PodChange),
    /// The connection is lost, for this reason.
    Away(String),
    /// An event that is new, or that occurred once more.
    Event(EventsOf, Box<Event>),
    /// A pod as `limpet describe` shows it, or why there is none.
    Detail(DetailOf, Result<Box<DescribeDocument>, String>),
    /// Further lines of a log, printable.
    Log(LogOf, Vec<String>),
    /// A log has no more lines, for this reason.
    LogEnd(LogOf, String),
    /// The usage, or why it is unknown.
    Usage(Result<Box<Figures>, String>),
}

/// What the node and its pods use.
#[derive(Debug)]
pub(super) struct Figures {
    /// The previous reading.
    pub(super) before: UsageDocument,
    /// The last reading.
    pub(super) after: UsageDocument,
    /// kubelet's Summary.
    pub(super) summary: Value,
}

/// The followed events. `epoch` counts connections: after a reconnection the stream starts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventsOf {
    pub(super) epoch: u64,
    /// Only those about this pod.
    pub(super) pod: Option<PodId>,
}

/// The described pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DetailOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
}

/// The followed log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
    pub(super) container: String,
    /// Whether it is the log of the previous instance.
    pub(super) previous: bool,
    /// The container's id, once it has one: another instance has another log.
    pub(super) instance: Option<String>,
}

/// What the screen shows besides the pods. Nothing else is requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subscriptions {
    pub(super) events: Option<EventsOf>,
    /// With a number that grows when the description has to be read again.
    pub(super) detail: Option<(DetailOf, u64)>,
    pub(super) log: Option<LogOf>,
    /// The epoch.
    pub(super) usage: Option<u64>,
}
