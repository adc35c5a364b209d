//! The report of the node to whoever looks after a fleet: what runs, what is wanted, and what is wrong, signed with a key of
//! the node, and sent by PUT at an interval.
//!
//! A report is made when it is sent, so there is never more than the newest one, however long the server is away.

mod document;
mod key;

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_bundle::SecretKey;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::http_schedule::{self, ExchangeResult};
use limpet_wire::status::ReportDocument;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use document::ReportInputs;

use limpet_sources::http::HttpSettings;
use limpet_sources::http::client::Timeouts;
use limpet_sources::http::failure::Failure;
use limpet_sources::http::fetch::Fetcher;

/// The signature of the body: a file of minisign's in base64.
const SIGNATURE: HeaderName = HeaderName::from_static("limpet-signature");
/// What of the URL stands for the node's name.
const NODE: &str = "{node}";

/// Sends the reports of the node.
pub struct NodeReporter {
    fetcher: Fetcher,
    interval: Duration,
    /// Where the key is, or is made.
    key: PathBuf,
    inputs: ReportInputs,
    network: watch::Receiver<NodeNetwork>,
    /// When the last one arrived, and why the newest did not.
    state: watch::Sender<Option<ReportDocument>>,
}

impl NodeReporter {
    /// Reports to the URL of the settings, in which `{node}` stands for the node's name. Nothing is sent yet.
    ///
    /// # Errors
    /// With the node's name it is no URL.
    pub fn new(
        settings: &HttpSettings,
        key: PathBuf,
        inputs: ReportInputs,
        network: watch::Receiver<NodeNetwork>,
    ) -> Result<Self, String> {
        let settings = HttpSettings { address: settings.address.with(NODE, &inputs.node_name)?, ..settings.clone() };
        let document = ReportDocument { url: settings.address.to_string(), last_sent: None, problem: None };
        let interval = settings.frequency;
        let fetcher = Fetcher::new(Arc::new(settings), Timeouts::default());
        Ok(Self { fetcher, interval, key, inputs, network, state: watch::Sender::new(Some(document)) })
    }

    /// When the last report arrived, for people.
    pub fn state(&self) -> watch::Receiver<Option<ReportDocument>> {
        self.state.subscribe()
    }

    /// Reports until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let key = match key::read_or_make(self.key.clone()).await {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(error, "this node has no key for its reports; none is sent");
                self.note(Some(error));
                return;
            }
        };
        let mut pause = http_schedule::first_pause(&self.inputs.node_name, self.interval);
        let (mut failures, mut result) = (0_u32, ExchangeResult::Success);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // What failed before says nothing of the network as it is now.
                Ok(()) = self.network.changed(), if result == ExchangeResult::Unreachable => failures = 0,
            }
            result = match self.send(&key).await {
                Ok(()) => {
                    failures = 0;
                    self.note(None);
                    ExchangeResult::Success
                }
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(reason = failure.reason, "the report did not arrive");
                    self.note(Some(failure.reason));
                    failure.result
                }
            };
            pause = http_schedule::pause(result, failures, self.interval, RandomState::new().hash_one(failures));
        }
    }

    /// Makes a report and sends it.
    async fn send(&mut self, key: &SecretKey) -> Result<(), Failure> {
        let now = Timestamp::now();
        let body = self.inputs.document(now).to_string().into_bytes();
        let comment = format!("limpet report of {} at {now}", self.inputs.node_name);
        let unsigned =
            |error: &dyn std::fmt::Display| Failure::bad_response(format!("the report cannot be signed: {error}"));
        let signature = key.sign(&body[..], &comment).map_err(|error| unsigned(&error))?;
        let signature = HeaderValue::from_str(&STANDARD.encode(signature)).map_err(|error| unsigned(&error))?;
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (SIGNATURE, signature),
        ]);
        self.fetcher.put(body, headers).await
    }

    /// Notes how the newest report fared.
    fn note(&self, problem: Option<String>) {
        self.state.send_modify(|document| {
            let Some(document) = document else { return };
            if problem.is_none() {
                document.last_sent = Some(Time(Timestamp::now()));
            }
            document.problem = problem;
        });
    }
}
