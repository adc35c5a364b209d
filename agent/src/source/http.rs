//! The URL source: one Pod or a list of them from a server, as kubelet's `staticPodURL`.
//!
//! In: the server's answers, what was last good from [`crate::store`]. Out: snapshots. What was last good is published
//! before the first byte is sent, so that a boot without a network, or with a clock that makes every certificate look
//! wrong, runs the same pods as before. An answer counts when it is whole and holds manifests: nothing else, no status,
//! no silence, no login page, no empty body, removes a pod. An empty list does.

mod answer;
mod check;
mod client;
mod failure;
mod fetch;
mod schedule;
mod settings;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::source::Pulse;
use crate::source::keep::Keeper;
use crate::store::Store;
pub(crate) use check::check_answer;
use client::Patience;
use failure::Failure;
use fetch::{Answer, Fetcher, Validators};
use limpet_core::last_good::LastGood;
use limpet_core::source::change::ChangeLog;
use limpet_core::source::rejection_log::RejectionLog;
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_model::manifest::Manifest;
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;
use schedule::Ended;
pub use settings::{Address, HttpSettings};

/// The URL source, ready to run.
#[derive(Debug)]
pub struct HttpSource {
    settings: Arc<HttpSettings>,
    /// The URL as it is shown: what its pods come from.
    origin: Arc<str>,
    /// The URL as the store knows it.
    kept_as: Arc<str>,
    /// Other URLs the store still has pods of; they are dropped once this one has answered.
    former: Vec<Arc<str>>,
    node_name: Arc<str>,
    decoder: Decoder,
    fetcher: Fetcher,
    view: View,
    /// Stand for the answer that the view was made of.
    validators: Option<Validators>,
    body: Option<[u8; 32]>,
    /// Failed exchanges in a row.
    failures: u32,
    ready: bool,
    health: Health,
    keeper: Keeper,
    told: RejectionLog,
    ledger: ChangeLog,
    pulse: Arc<Pulse>,
}

impl HttpSource {
    /// A source for the settings' URL. Nothing is asked for yet.
    pub fn new(settings: HttpSettings, node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        Self::with_patience(settings, node_name, store, decoder, Patience::default())
    }

    fn with_patience(
        settings: HttpSettings,
        node_name: &str,
        store: Arc<Store>,
        decoder: Decoder,
        patience: Patience,
    ) -> Self {
        let settings = Arc::new(settings);
        let pulse = Arc::<Pulse>::default();
        Self {
            origin: Arc::from(settings.address.to_string()),
            kept_as: Arc::from(settings.address.kept_as()),
            former: Vec::new(),
            node_name: Arc::from(node_name),
            decoder,
            fetcher: Fetcher::new(Arc::clone(&settings), patience),
            settings,
            view: View::default(),
            validators: None,
            body: None,
            failures: 0,
            ready: false,
            health: Health::Starting,
            keeper: Keeper::new(store, SourceKind::Http, Arc::clone(&pulse)),
            told: RejectionLog::new(SourceKind::Http),
            ledger: ChangeLog::new(SourceKind::Http),
            pulse,
        }
    }

    /// When it succeeded last and when it tries again, for people.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Asks and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        self.recall().await;
        self.publish(&publish);
        'exchanges: loop {
            let fetched = tokio::select! {
                () = stop.cancelled() => break,
                fetched = self.fetcher.fetch(self.validators.as_ref()) => fetched,
            };
            let ended = self.take(fetched).await;
            let next = Instant::now() + self.pause(ended);
            self.publish(&publish);
            loop {
                tokio::select! {
                    () = stop.cancelled() => break 'exchanges,
                    () = self.keeper.written() => self.keep_again(),
                    () = sleep_until(next) => break,
                }
            }
        }
        self.keeper.flush().await;
    }

    /// Takes what an earlier run last accepted, also from another URL: until this one answers, that is what is wanted.
    async fn recall(&mut self) {
        let kept = self.keeper.load(|store| store.last_good(SourceKind::Http)).await.unwrap_or_default();
        self.ledger.expect(&kept);
        let mut contents = Contents::default();
        let own = kept.iter().filter(|(name, _)| **name == self.kept_as);
        for (name, kept) in own.chain(kept.iter().filter(|(name, _)| **name != self.kept_as)) {
            let restored = self.decoder.restore_all(&kept.manifests, &self.origin, SourceKind::Http, &self.node_name);
            if *name != self.kept_as {
                self.former.push(Arc::clone(name));
            } else {
                self.pulse.succeeded(kept.accepted);
                if restored.pods.len() + restored.objects.len() == kept.manifests.len() {
                    self.validators = serde_json::from_str(&kept.mark).ok();
                }
            }
            contents.add(restored);
        }
        if !kept.is_empty() {
            info!(url = %self.origin, pods = contents.pods.len(), "last good pods of the URL are back, before it is asked");
            self.view.restore(&self.origin, contents);
        }
    }

    async fn take(&mut self, fetched: Result<Answer, Failure>) -> Ended {
        let taken = match fetched {
            Ok(Answer::NotModified) => Ok(()),
            Ok(Answer::Body { bytes, validators }) => self.body(bytes, validators).await,
            Err(failure) => Err(failure),
        };
        match taken {
            Ok(()) => {
                self.failures = 0;
                self.ready = true;
                self.pulse.succeeded(Timestamp::now());
                self.set_health(Health::Good);
                Ended::Well
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                let pods = self.view.pods();
                self.set_health(Health::Unavailable(format!("{failure}; {pods} pods are kept").into()));
                failure.ended
            }
        }
    }

    async fn body(&mut self, bytes: Vec<u8>, validators: Option<Validators>) -> Result<(), Failure> {
        let digest = Sha256::digest(&bytes).into();
        if self.body == Some(digest) {
            self.validators = validators;
            return Ok(());
        }
        let (decoder, origin, node_name) = (self.decoder, Arc::clone(&self.origin), Arc::clone(&self.node_name));
        let read = move || answer::read(&bytes, decoder, &origin, &node_name);
        let manifest = match tokio::task::spawn_blocking(read).await {
            Ok(manifest) => manifest?,
            Err(error) => {
                error!(%error, "reading the URL's answer failed");
                return Err(Failure::refused("its answer cannot be read"));
            }
        };
        self.accept(manifest, validators);
        self.body = Some(digest);
        Ok(())
    }

    fn accept(&mut self, manifest: Manifest, validators: Option<Validators>) {
        self.told.warnings(&self.origin, &manifest.faults);
        let refused = manifest.faults.iter().any(|fault| fault.severity == Severity::Error);
        self.view.accept(&self.origin, manifest, Contents::default);
        // An answer that was refused in part is read again after a restart, so that its faults are known again.
        let mark = validators.as_ref().filter(|_| !refused).and_then(|known| serde_json::to_string(known).ok());
        self.validators = validators;
        self.keep(mark.unwrap_or_default());
        if !refused {
            for former in std::mem::take(&mut self.former) {
                self.keeper.put(former, None);
            }
        }
    }

    fn keep(&mut self, mark: String) {
        let manifests = self.view.manifests(&self.origin).unwrap_or_default();
        self.keeper
            .put(Arc::clone(&self.kept_as), Some(LastGood { mark, ..LastGood::new(manifests, Timestamp::now()) }));
    }

    /// After the database had to be replaced: what this source knows is put into the new one.
    fn keep_again(&mut self) {
        if self.keeper.must_begin_again() {
            self.keep(String::new());
            self.keeper.write();
        }
    }

    fn pause(&self, ended: Ended) -> Duration {
        let dice = RandomState::new().hash_one(());
        let pause = schedule::pause(ended, self.failures, self.settings.frequency, dice);
        if ended != Ended::Well {
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
            Health::Good => info!(url = %self.origin, pods = self.view.pods(), "URL source reads"),
            Health::Blind(_) | Health::Starting => {}
        }
        self.health = health;
    }

    fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if let Some(snapshot) = self.view.settle(self.ready, self.health.clone()) {
            let restore = |_: &str, kept: &LastGood| {
                self.decoder.restore_all(&kept.manifests, &self.origin, SourceKind::Http, &self.node_name)
            };
            // Who changed what a server answers is known there.
            let snapshot = self.ledger.enter(snapshot, Timestamp::now(), restore, |_| None);
            self.keeper.put_history(&snapshot.changes);
            self.told.snapshot(&snapshot);
            publish(snapshot);
        }
        self.keeper.write();
    }
}

#[cfg(test)]
mod tests;
