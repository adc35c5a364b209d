//! The data that `limpet ui` receives from the agent, and the data that the current screen needs.

use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use limpet_wire::pods::{DescribeDocument, PodChange};
use limpet_wire::usage::UsageDocument;

pub(super) type PodId = (String, String);

/// An update from the agent.
#[derive(Debug)]
pub(super) enum Feed {
    /// A change of the pods.
    Pod(PodChange),
    /// The connection was lost, with the reason.
    Away(String),
    /// A new event, or one that recurred.
    Event(EventsOf, Box<Event>),
    /// A pod as `limpet describe` shows it, or why that failed.
    Detail(DetailOf, Result<Box<DescribeDocument>, String>),
    /// Further lines of a log, printable.
    Log(LogOf, Vec<String>),
    /// The end of a log, with the reason.
    LogEnd(LogOf, String),
    /// Usage, or why it is unknown.
    Usage(Result<Box<Figures>, String>),
}

/// The usage of the node and its pods.
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
    /// Selects the events of this pod only.
    pub(super) pod: Option<PodId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DetailOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogOf {
    pub(super) epoch: u64,
    pub(super) pod: PodId,
    pub(super) container: String,
    /// Whether it is the log of the previous instance.
    pub(super) previous: bool,
    /// The container's id, once it has one: each instance has its own log.
    pub(super) instance: Option<String>,
}

/// What the screen shows besides the pods; only this is requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subscriptions {
    pub(super) events: Option<EventsOf>,
    /// The pod, and a number that increases when its description has to be read again.
    pub(super) detail: Option<(DetailOf, u64)>,
    pub(super) log: Option<LogOf>,
    /// The epoch of the connection.
    pub(super) usage: Option<u64>,
}
