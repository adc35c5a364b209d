//! The URL source: one Pod or a list of Pods from a server, as kubelet's `staticPodURL`.
//!
//! In: the server's responses, last good manifests from [`limpet_store`]. Out: snapshots. The last good manifests are
//! published before the first request, so that a boot without a network, or with a clock that invalidates every
//! certificate, runs the same pods as before. A response counts only if it is complete and holds manifests: no error
//! status, timeout, login page or empty body removes a pod. An empty list does.

mod body;
mod check;
pub mod client;
pub mod failure;
pub mod fetch;
mod settings;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::Pulse;
use crate::persist::Persister;
pub use check::check_answer;
use client::Timeouts;
use failure::Failure;
use fetch::{Fetched, Fetcher, Validators};
use limpet_core::last_good::LastGood;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::change::ChangeLog;
use limpet_core::source::http_schedule::{self, ExchangeResult};
use limpet_core::source::rejection_log::RejectionLog;
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_model::manifest::Manifest;
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;
use limpet_store::Store;
pub use settings::{Address, HttpSettings};

/// The URL source, ready to run.
#[derive(Debug)]
pub struct HttpSource {
    settings: Arc<HttpSettings>,
    /// The URL without secrets: the origin of its pods.
    origin: Arc<str>,
    /// The URL's key in the store.
    store_key: Arc<str>,
    /// Other URLs with pods in the store; they are removed once this URL has responded.
    other_urls: Vec<Arc<str>>,
    node_name: Arc<str>,
    decoder: Decoder,
    fetcher: Fetcher,
    view: View,
    /// Identify the response that the view was made of.
    validators: Option<Validators>,
    body: Option<[u8; 32]>,
    /// How many exchanges have failed since the last one that succeeded: the pause grows with them.
    failures: u32,
    ready: bool,
    health: Health,
    persister: Persister,
    rejection_log: RejectionLog,
    ledger: ChangeLog,
    pulse: Arc<Pulse>,
    /// The node's network, whose changes end the back-off after an unreachable server.
    network: Option<watch::Receiver<NodeNetwork>>,
}

impl HttpSource {
    /// A source for the settings' URL. Nothing is requested yet.
    pub fn new(settings: HttpSettings, node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        Self::with_timeouts(settings, node_name, store, decoder, Timeouts::default())
    }

    fn with_timeouts(
        settings: HttpSettings,
        node_name: &str,
        store: Arc<Store>,
        decoder: Decoder,
        timeouts: Timeouts,
    ) -> Self {
        let settings = Arc::new(settings);
        let pulse = Arc::<Pulse>::default();
        Self {
            origin: Arc::from(settings.address.to_string()),
            store_key: Arc::from(settings.address.store_key()),
            other_urls: Vec::new(),
            node_name: Arc::from(node_name),
            decoder,
            fetcher: Fetcher::new(Arc::clone(&settings), timeouts),
            settings,
            view: View::default(),
            validators: None,
            body: None,
            failures: 0,
            ready: false,
            health: Health::Starting,
            persister: Persister::new(store, SourceKind::Http, Arc::clone(&pulse)),
            rejection_log: RejectionLog::new(SourceKind::Http),
            ledger: ChangeLog::new(SourceKind::Http),
            pulse,
            network: None,
        }
    }

    /// The same, but it tries an unreachable server again soon after a change of the node's network.
    pub fn woken_by(self, network: watch::Receiver<NodeNetwork>) -> Self {
        Self { network: Some(network), ..self }
    }

    /// When it last succeeded and when it retries, for users.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Requests the URL and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        self.restore().await;
        self.publish(&publish);
        'exchanges: loop {
            let fetched = tokio::select! {
                () = stop.cancelled() => break,
                fetched = self.fetcher.fetch(self.validators.as_ref()) => fetched,
            };
            let result = self.apply(fetched).await;
            let mut next = Instant::now() + self.pause(result);
            self.publish(&publish);
            loop {
                tokio::select! {
                    () = stop.cancelled() => break 'exchanges,
                    () = self.persister.written() => {}
                    () = changed(&mut self.network), if result == ExchangeResult::Unreachable => {
                        // Earlier failures say nothing about the current network.
                        self.failures = 1;
                        next = next.min(Instant::now() + self.pause(result));
                    }
                    () = sleep_until(next) => break,
                }
            }
        }
        self.persister.flush().await;
    }

    /// Restores what an earlier run accepted, even from another URL. It stays desired until this URL responds.
    async fn restore(&mut self) {
        let load = |store: &Store| Ok(store.load::<LastGood>(SourceKind::Http)?.records);
        let saved = self.persister.load(load).await.unwrap_or_default();
        self.ledger.expect(&saved);
        let mut contents = Contents::default();
        let of_this_url = saved.iter().filter(|(name, _)| **name == self.store_key);
        for (name, saved) in of_this_url.chain(saved.iter().filter(|(name, _)| **name != self.store_key)) {
            let restored = self.decoder.restore_all(&saved.manifests, &self.origin, SourceKind::Http, &self.node_name);
            if *name != self.store_key {
                self.other_urls.push(Arc::clone(name));
            } else {
                self.pulse.succeeded(saved.accepted);
                if restored.pods.len() + restored.objects.len() == saved.manifests.len() {
                    self.validators = serde_json::from_str(&saved.mark).ok();
                }
            }
            contents.add(restored);
        }
        if !saved.is_empty() {
            info!(url = %self.origin, pods = contents.pods.len(), "last good pods of the URL restored");
            let contents = Arc::new(contents);
            // It is held without a mark, so that the response is read again after damage.
            self.persister.hold(Arc::clone(&self.store_key), Arc::clone(&contents), "");
            self.view.restore(&self.origin, contents);
        }
    }

    async fn apply(&mut self, fetched: Result<Fetched, Failure>) -> ExchangeResult {
        let taken = match fetched {
            Ok(Fetched::NotModified) => Ok(()),
            Ok(Fetched::Body { bytes, validators }) => self.apply_body(bytes, validators).await,
            Err(failure) => Err(failure),
        };
        match taken {
            Ok(()) => {
                self.failures = 0;
                self.ready = true;
                self.pulse.succeeded(Timestamp::now());
                self.set_health(Health::Good);
                ExchangeResult::Success
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                let pods = self.view.pods();
                self.set_health(Health::Unavailable(format!("{failure}; {pods} pods are kept").into()));
                failure.result
            }
        }
    }

    async fn apply_body(&mut self, bytes: Vec<u8>, validators: Option<Validators>) -> Result<(), Failure> {
        let (decoder, origin, node_name) = (self.decoder, Arc::clone(&self.origin), Arc::clone(&self.node_name));
        let known = self.body;
        // There is one request at a time, so at most one thread hashes and decodes.
        let read = tokio::task::spawn_blocking(move || {
            let digest = Sha256::digest(&bytes).into();
            let changed = known != Some(digest);
            (digest, changed.then(|| body::read(&bytes, decoder, &origin, &node_name)))
        });
        let (digest, manifest) = read.await.map_err(|error| {
            error!(%error, "decoding the URL's response failed");
            Failure::bad_response("cannot decode the response")
        })?;
        match manifest {
            None => self.validators = validators,
            Some(manifest) => {
                self.accept(manifest?, validators);
                self.body = Some(digest);
            }
        }
        Ok(())
    }

    fn accept(&mut self, manifest: Manifest, validators: Option<Validators>) {
        self.rejection_log.warnings(&self.origin, &manifest.faults);
        let rejected = manifest.faults.iter().any(|fault| fault.severity == Severity::Error);
        self.view.accept(&self.origin, manifest, Contents::default);
        // A partly rejected response is read again after a restart, so that its faults are known again.
        let mark = validators.as_ref().filter(|_| !rejected).and_then(|known| serde_json::to_string(known).ok());
        self.validators = validators;
        let contents = self.view.contents(&self.origin).unwrap_or_default();
        self.persister.put(Arc::clone(&self.store_key), Some(contents), &mark.unwrap_or_default());
        if !rejected {
            for url in std::mem::take(&mut self.other_urls) {
                self.persister.put(url, None, "");
            }
        }
    }

    fn pause(&self, result: ExchangeResult) -> Duration {
        let dice = RandomState::new().hash_one(());
        let pause = http_schedule::pause(result, self.failures, self.settings.frequency, dice);
        if result != ExchangeResult::Success {
            let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
            self.pulse.retries(Timestamp::now().saturating_add(pause).unwrap_or(Timestamp::MAX));
        }
        pause
    }

    fn set_health(&mut self, health: Health) {
        if self.health == health {
            return;
        }
        match &health {
            Health::Unavailable(reason) => warn!(%reason, url = %self.origin, "URL source unavailable"),
            Health::Good => info!(url = %self.origin, pods = self.view.pods(), "URL source healthy"),
            Health::Blind(_) | Health::Starting => {}
        }
        self.health = health;
    }

    fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if let Some(snapshot) = self.view.finish_update(self.ready, self.health.clone()) {
            let restore = |_: &str, saved: &LastGood| {
                self.decoder.restore_all(&saved.manifests, &self.origin, SourceKind::Http, &self.node_name)
            };
            // Only the server knows who changed its manifests.
            let snapshot = self.ledger.enter(snapshot, Timestamp::now(), restore, |_| None);
            self.persister.put_history(&snapshot.changes);
            self.rejection_log.snapshot(&snapshot);
            publish(snapshot);
        }
        self.persister.write();
    }
}

/// Resolves when the network has changed; never resolves without one. Cancel safe.
async fn changed(network: &mut Option<watch::Receiver<NodeNetwork>>) {
    if let Some(network) = network
        && network.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
