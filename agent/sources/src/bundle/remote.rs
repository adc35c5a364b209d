//! Bundles from elsewhere: a URL, or an artifact of a registry, asked at an interval.
//!
//! A bundle is downloaded once, goes on after a break, and is handed to the source as a file. Nothing of it is read here but its
//! first bytes, which say whether this node needs it.

mod foresight;
mod part;
mod registry;
mod url;

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use limpet_containerd::image::Images;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::http_schedule::{self, ExchangeResult};
use limpet_host::throttle::Throttle;
use limpet_model::error_chain::error_chain;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::intake::{BundleIntake, Way};
use super::refusal::Refusal;
use crate::http::HttpSettings;
use crate::http::failure::Failure;
use foresight::{Foresight, NotNeeded};
use part::Part;
use registry::RegistryOrigin;
use url::UrlOrigin;

/// Where bundles are asked for.
#[derive(Debug)]
enum Origin {
    Url(UrlOrigin),
    Registry(RegistryOrigin),
}

/// The result of one request that did not fail.
#[derive(Debug)]
enum Fetched {
    /// What was handed over before.
    Known,
    Whole(Whole),
    /// The beginning of a file whose rest is not needed.
    NotNeeded {
        version: Option<String>,
        why: NotNeeded,
    },
}

/// A file that was downloaded.
#[derive(Debug, Clone)]
struct Whole {
    /// What the server calls it.
    version: Option<String>,
    /// It is of several answers.
    resumed: bool,
}

/// Asks one place at an interval.
#[derive(Debug)]
pub struct RemoteBundles {
    origin: Origin,
    /// The place as it is logged and shown: a URL without its password and query.
    shown: String,
    way: Way,
    interval: Duration,
    directory: PathBuf,
    max_size: u64,
    intake: BundleIntake,
    foresight: Foresight,
    network: watch::Receiver<NodeNetwork>,
    /// It is downloaded, and could not be taken yet.
    pending: Option<Whole>,
}

impl RemoteBundles {
    /// Those of a URL. Nothing is requested yet.
    pub fn of_url(settings: HttpSettings, parts: RemoteParts) -> Self {
        let (shown, interval) = (settings.address.to_string(), settings.frequency);
        let origin = Origin::Url(UrlOrigin::new(settings, parts.throttle.clone()));
        Self::new(origin, Way::Url, shown, interval, parts)
    }

    /// Those of an artifact in a registry, by tag or digest.
    pub fn of_registry(images: Images, reference: &str, interval: Duration, parts: RemoteParts) -> Self {
        let origin = Origin::Registry(RegistryOrigin::new(images, reference));
        Self::new(origin, Way::Registry, reference.to_owned(), interval, parts)
    }

    fn new(origin: Origin, way: Way, shown: String, interval: Duration, parts: RemoteParts) -> Self {
        let RemoteParts { directory, max_size, keys, intake, node_name, network, .. } = parts;
        let foresight = Foresight { keys, node_name, applied: intake.applied() };
        Self { origin, shown, way, interval, directory, max_size, intake, foresight, network, pending: None }
    }

    /// Asks for a newer bundle at each interval, and offers what has come.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let name = if self.way == Way::Url { "url" } else { "registry" };
        let mut part = Part::open(&self.directory, name, self.max_size).await;
        if self.intake.has_bundle().await {
            // Nodes that start together after a power cut do not ask together.
            tokio::time::sleep(http_schedule::first_pause(&self.foresight.node_name, self.interval)).await;
        }
        let mut failures = 0;
        loop {
            let result = match self.exchange(&mut part).await {
                Ok(()) => {
                    failures = 0;
                    ExchangeResult::Success
                }
                Err(failure) => {
                    failures = u32::saturating_add(failures, 1);
                    debug!(from = self.shown, reason = failure.reason, "no bundle");
                    self.unreachable(&failure, failures).await;
                    failure.result
                }
            };
            let pause = self.pause(result, failures);
            tokio::select! {
                () = sleep_until(Instant::now() + pause) => {}
                // What failed before says nothing of the network as it is now.
                Ok(()) = self.network.changed(), if result == ExchangeResult::Unreachable => failures = 0,
            }
        }
    }

    /// One exchange, and what follows from it.
    async fn exchange(&mut self, part: &mut Part) -> Result<(), Failure> {
        let fetched = match self.pending.take() {
            Some(pending) => Fetched::Whole(pending),
            None => self.fetch(part).await?,
        };
        self.intake.reached(self.way).await;
        let whole = match fetched {
            Fetched::Known => return Ok(()),
            Fetched::Whole(whole) => whole,
            Fetched::NotNeeded { version, why } => {
                match why {
                    NotNeeded::Outside(bundle, percent) => self.intake.pass_by(bundle, percent).await,
                    NotNeeded::Older(bundle) => warn!(from = self.shown, bundle, "the server has an older bundle"),
                }
                self.intake.report(self.way, Vec::new()).await;
                return part.done(version).await.map_err(|error| unwritable(&error));
            }
        };
        let Whole { version, resumed } = whole.clone();
        let offered = self.intake.offer_until_taken(part.path(), Path::new(&self.shown), self.way).await;
        let (version, refused) = match offered {
            Ok(document) => {
                info!(from = self.shown, version = document.version, serial = document.serial, "bundle downloaded");
                (version, None)
            }
            Err(Refusal::Replayed { message, .. }) => {
                warn!(from = self.shown, message, "the server has an older bundle");
                (version, None)
            }
            Err(Refusal::Outside(message)) => {
                debug!(from = self.shown, message, "the server's bundle is for other nodes");
                (version, None)
            }
            Err(refusal) if refusal.is_transient() => {
                self.pending = Some(whole);
                return Err(Failure::unreachable(refusal.to_string()));
            }
            // Of answers that do not belong together nothing is kept: the next one is downloaded as a whole.
            Err(refusal) => (version.filter(|_| !resumed), Some(refusal.to_string())),
        };
        let refused = refused.map(|message| (PathBuf::from(&self.shown), message));
        self.intake.report(self.way, refused.into_iter().collect()).await;
        part.done(version).await.map_err(|error| unwritable(&error))
    }

    /// Downloads what is new, when bundles may be downloaded. What was received before a window closes is kept.
    async fn fetch(&mut self, part: &mut Part) -> Result<Fetched, Failure> {
        let (origin, part, foresight) = (&Mutex::new(&mut self.origin), &Mutex::new(part), &self.foresight);
        let fetch = || async {
            let (mut origin, mut part) = (origin.lock().await, part.lock().await);
            match &mut **origin {
                Origin::Url(url) => url.fetch(&mut part, foresight).await,
                Origin::Registry(registry) => registry.fetch(&mut part, foresight).await,
            }
        };
        self.intake.while_downloading(&self.shown, fetch).await
    }

    async fn unreachable(&self, failure: &Failure, failures: u32) {
        let pause = self.pause(failure.result, failures);
        let retry = SignedDuration::try_from(pause).ok().and_then(|pause| Timestamp::now().checked_add(pause).ok());
        let reason = format!("{}: {}", self.shown, failure.reason);
        self.intake.unreachable(self.way, reason, retry.unwrap_or(Timestamp::MAX)).await;
    }

    fn pause(&self, result: ExchangeResult, failures: u32) -> Duration {
        http_schedule::pause(result, failures, self.interval, RandomState::new().hash_one(failures))
    }
}

/// The settings and channels that a URL and a registry need alike.
#[derive(Debug, Clone)]
pub struct RemoteParts {
    /// `<root-dir>/bundle`: downloads are kept there, so that an interrupted one goes on.
    pub directory: PathBuf,
    /// The most bytes of a bundle.
    pub max_size: u64,
    /// The files of the keys that may sign.
    pub keys: Vec<PathBuf>,
    pub intake: BundleIntake,
    /// The rate at which a URL is read; a registry's is that of its images.
    pub throttle: Throttle,
    /// Decides when after its start the node asks for the first time.
    pub node_name: Arc<str>,
    /// Its changes end the back-off after an unreachable server.
    pub network: watch::Receiver<NodeNetwork>,
}

fn unwritable(error: &std::io::Error) -> Failure {
    Failure::unreachable(format!("cannot keep what is downloaded: {}", error_chain(error)))
}
