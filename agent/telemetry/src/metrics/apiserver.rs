//! Metrics of the connection to the apiserver, of requests under client-go's names, and of the node's certificates
//! under kubelet's.
//!
//! There are no series outside a cluster. Continuous values, such as the time without a connection or a certificate's
//! remaining lifetime, are computed at the scrape.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::{Reading, Seconds};

/// client-go's buckets.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// One of the certificates that the node requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCertificate {
    /// The certificate with which the node authenticates to the apiserver.
    Client,
    /// The certificate that the node's own API presents.
    Serving,
}

impl NodeCertificate {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Client, Self::Serving];

    /// kubelet's families: the certificate's remaining lifetime, and failed renewals.
    fn families(self) -> [(&'static str, &'static str); 2] {
        let errors = "[ALPHA] Counter of certificate renewal errors.";
        match self {
            Self::Client => [
                (
                    "kubelet_certificate_manager_client_ttl_seconds",
                    "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in \
                     seconds until certificate expiry (negative if already expired). If client certificate is invalid \
                     or unused, the value will be +INF.",
                ),
                ("kubelet_certificate_manager_client_expiration_renew_errors", errors),
            ],
            Self::Serving => [
                (
                    "kubelet_certificate_manager_server_ttl_seconds",
                    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value \
                     is in seconds until certificate expiry (negative if already expired). If serving certificate is \
                     invalid or unused, the value will be +INF.",
                ),
                ("kubelet_server_expiration_renew_errors", errors),
            ],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: String,
    method: String,
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    resource: &'static str,
    verb: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The metrics of a node in a cluster. Clones share them.
#[derive(Debug, Clone)]
pub struct ApiserverMetrics {
    connected: Family<ServerLabel, Gauge>,
    requests: Family<CodeLabels, Counter>,
    seconds: Family<VerbLabels, Histogram>,
    sent: Family<VerbLabels, Histogram>,
    received: Family<VerbLabels, Histogram>,
    unsent: Family<KindLabel, Gauge>,
    running: Running,
}

impl Default for ApiserverMetrics {
    fn default() -> Self {
        let bytes = || Family::new_with_constructor((|| Histogram::new(BYTES)) as fn() -> Histogram);
        Self {
            connected: Family::default(),
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            sent: bytes(),
            received: bytes(),
            unsent: Family::default(),
            running: Running::default(),
        }
    }
}

impl ApiserverMetrics {
    /// Records whether the apiserver answers. The time without answers is counted from the first call on.
    pub fn set_connected(&self, server: &str, connected: bool) {
        self.connected.get_or_create(&ServerLabel { server: server.to_owned() }).set(i64::from(connected));
        let mut state = self.running.state();
        let offline = state.offline.get_or_insert_default();
        match (connected, offline.since) {
            (true, Some(since)) => {
                offline.before += since.elapsed();
                offline.since = None;
            }
            (false, None) => offline.since = Some(Instant::now()),
            _ => {}
        }
    }

    /// Removes the server's series, because its address is no longer used.
    pub fn forget_server(&self, server: &str) {
        self.connected.remove(&ServerLabel { server: server.to_owned() });
    }

    /// Counts a finished request; as in client-go, `code` is `<error>` without an answer.
    pub fn requested(&self, method: &str, resource: &'static str, code: String) {
        self.requests.get_or_create(&CodeLabels { code, method: method.to_owned(), resource }).inc();
    }

    /// Records a finished request other than a watch; `sent` and `received` are the sizes of its bodies in bytes.
    pub fn answered(
        &self,
        verb: &str,
        resource: &'static str,
        took: Duration,
        sent: Option<usize>,
        received: Option<usize>,
    ) {
        let labels = VerbLabels { resource, verb: verb.to_owned() };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        for (family, bytes) in [(&self.sent, sent), (&self.received, received)] {
            if let Some(bytes) = bytes {
                family.get_or_create(&labels).observe(bytes as f64);
            }
        }
    }

    /// Records how much of each kind is unsent.
    pub fn set_unsent(&self, by_kind: &[(&'static str, usize)]) {
        for (kind, count) in by_kind {
            self.unsent.get_or_create(&KindLabel { kind }).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Records when the first service account token of any pod expires; `None` if no pod has one.
    pub fn set_first_token_expiry(&self, expiry: Option<Timestamp>) {
        self.running.state().first_token_expiry = expiry;
    }

    /// Records that the node requests this certificate, and when the current one expires; `None` if there is none.
    pub fn certificate_held(&self, certificate: NodeCertificate, until: Option<Timestamp>) {
        self.running.state().certificate(certificate).get_or_insert_default().until = until;
    }

    /// Counts a failed request for this certificate.
    pub fn renewal_failed(&self, certificate: NodeCertificate) {
        self.running.state().certificate(certificate).get_or_insert_default().failures += 1;
    }

    pub(super) fn register(&self, all: &mut Registry) {
        let help = "1 while the apiserver answers; absent without --kubeconfig";
        all.register("limpet_apiserver_connected", help, self.connected.clone());
        let help = "Not sent to the apiserver yet: statuses of its pods, mirror pods, events";
        all.register("limpet_outbox_entries", help, self.unsent.clone());
        let help = "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.";
        all.register("rest_client_requests", help, self.requests.clone());
        let help = "[ALPHA] Request latency in seconds. Broken down by verb, and host.";
        all.register("rest_client_request_duration_seconds", help, self.seconds.clone());
        let help = "[ALPHA] Request size in bytes. Broken down by verb and host.";
        all.register("rest_client_request_size_bytes", help, self.sent.clone());
        let help = "[ALPHA] Response size in bytes. Broken down by verb and host.";
        all.register("rest_client_response_size_bytes", help, self.received.clone());
        all.register_collector(Box::new(self.running.clone()));
    }
}

/// The values that are computed at the scrape.
#[derive(Debug, Clone, Default)]
struct Running(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None` outside a cluster.
    offline: Option<Offline>,
    client: Option<CertificateState>,
    serving: Option<CertificateState>,
    first_token_expiry: Option<Timestamp>,
}

/// The time without a connection.
#[derive(Debug, Default)]
struct Offline {
    before: Duration,
    /// When the current outage began.
    since: Option<Instant>,
}

/// A certificate that the node requests.
#[derive(Debug, Default)]
struct CertificateState {
    until: Option<Timestamp>,
    failures: u64,
}

impl State {
    fn certificate(&mut self, certificate: NodeCertificate) -> &mut Option<CertificateState> {
        match certificate {
            NodeCertificate::Client => &mut self.client,
            NodeCertificate::Serving => &mut self.serving,
        }
    }
}

impl Running {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Running {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut state = self.state();
        if let Some(offline) = &state.offline {
            let now = offline.since.map(|since| since.elapsed()).unwrap_or_default();
            let total = Seconds::new((offline.before + now).as_secs_f64());
            let help = "Seconds without a connection to the apiserver since the agent started.";
            total.encode(encoder.encode_descriptor("limpet_offline_seconds", help, None, total.metric_type())?)?;
        }
        if let Some(expiry) = state.first_token_expiry {
            let left = Reading::new(expiry.duration_since(Timestamp::now()).as_secs_f64().trunc());
            let help = "Seconds until the first service account token of any pod expires; negative after that.";
            left.encode(encoder.encode_descriptor("limpet_token_ttl_seconds", help, None, left.metric_type())?)?;
        }
        for certificate in NodeCertificate::ALL {
            let Some(held) = state.certificate(certificate) else { continue };
            let [(ttl, ttl_help), (errors, errors_help)] = certificate.families();
            let left = held.until.map_or(f64::INFINITY, |until| until.duration_since(Timestamp::now()).as_secs_f64());
            let left = Reading::new(left.trunc());
            let help = format!("{ttl_help}.");
            left.encode(encoder.encode_descriptor(ttl, &help, None, left.metric_type())?)?;
            let failures = ConstCounter::new(held.failures);
            let help = format!("{errors_help}.");
            failures.encode(encoder.encode_descriptor(errors, &help, None, failures.metric_type())?)?;
        }
        Ok(())
    }
}
