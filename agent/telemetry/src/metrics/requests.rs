//! Metrics of requests to the agent's own listeners, under kubelet's names.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::DEFAULT_SECONDS;

/// What a listener allows its clients: kubelet's label `server_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerType {
    ReadOnly,
    ReadWrite,
}

impl EncodeLabelValue for ServerType {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        use std::fmt::Write as _;
        encoder.write_str(match self {
            Self::ReadOnly => "readonly",
            Self::ReadWrite => "readwrite",
        })
    }
}

/// The labels of a request, with a bounded number of values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestKind {
    /// Whether it connects a client with a container: `true` or `false`.
    pub long_running: &'static str,
    /// The method, if some route has it.
    pub method: &'static str,
    /// The beginning of its route's path: `pods`, `metrics/resource`; `other` if it is not one of kubelet's or
    /// limpet's.
    pub path: String,
    pub server_type: ServerType,
}

#[derive(Debug, Clone)]
pub(super) struct RequestCounters {
    count: Family<RequestKind, Counter>,
    seconds: Family<RequestKind, Histogram>,
    websockets: Family<SubresourceLabel, Counter>,
}

/// The target of a WebSocket: kubelet's label `subresource`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubresourceLabel {
    subresource: String,
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self {
            count: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(DEFAULT_SECONDS)),
            websockets: Family::default(),
        }
    }
}

impl RequestCounters {
    pub(super) fn register(&self, all: &mut Registry) {
        let help = "[ALPHA] Number of the http requests received since the server started";
        all.register("kubelet_http_requests", help, self.count.clone());
        let help = "[ALPHA] Duration in seconds to serve http requests";
        all.register("kubelet_http_requests_duration_seconds", help, self.seconds.clone());
        let help =
            "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.";
        all.register("kubelet_websocket_streaming_requests", help, self.websockets.clone());
    }

    /// `path` is the beginning of the route: `exec`, `attach` or `portForward`.
    pub(super) fn websocket_opened(&self, path: &str) {
        self.websockets.get_or_create(&SubresourceLabel { subresource: path.to_lowercase() }).inc();
    }

    pub(super) fn answered(&self, kind: &RequestKind, took: Duration) {
        self.count.get_or_create(kind).inc();
        self.seconds.get_or_create(kind).observe(took.as_secs_f64());
    }
}
