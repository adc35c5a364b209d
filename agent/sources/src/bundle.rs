//! The source of signed bundles: what the newest bundle defines, kept on disk and published before anything is read.
//!
//! In: files that were handed over, by whatever way they came. Out: snapshots. A bundle takes effect as a whole or not at
//! all: it is copied to a place that nobody else can change, verified, read, its images are imported under their digests, and
//! then one transaction of the database replaces the bundle before. Until that transaction a power cut leaves the node as it
//! was, and after it the new bundle runs.

mod directory;
mod intake;
mod node_key;
mod refusal;
mod remote;
mod saved;
mod staging;
mod upload;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use limpet_bundle::PublicKeys;
use limpet_bundle::bundle::Bundle;
use limpet_bundle::decision::{AppliedBundle, Decision, decide, replay_message};
use limpet_bundle::node_key::NodeKey;
use limpet_bundle::settings::BundleSettings;
use limpet_containerd::image::Images;
use limpet_core::last_good::LastGood;
use limpet_core::node_place::NodePlace;
use limpet_core::source::change::ChangeLog;
use limpet_core::source::rejection_log::RejectionLog;
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_model::error_chain::error_chain;
use limpet_model::manifest::Manifest;
use limpet_model::object::ObjectRecord;
use limpet_model::pod::{Fault, Severity};
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::Metrics;
use limpet_updates::{Phase, UpdateGate};
use limpet_wire::bundle::BundleDocument;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::Pulse;
use crate::persist::Persister;
pub use directory::BundleDirectory;
pub use intake::{BundleInbox, BundleIntake, intake};
use intake::{Request, Way, subject};
use limpet_store::{Changes, Store};
pub use node_key::public_node_key;
pub use refusal::Refusal;
pub use remote::{RemoteBundles, RemoteParts};
use saved::Saved;
use staging::Staging;
pub use upload::UploadStream;

/// The name of the record in the database.
const RECORD: &str = "applied";

/// What the source works with.
#[derive(Debug)]
pub struct BundleParts {
    pub settings: BundleSettings,
    /// `<root-dir>/bundle`: where bundles are copied to.
    pub directory: PathBuf,
    /// The file of the node's key, to which Secrets are sealed. It is made if it is missing.
    pub node_key: PathBuf,
    pub store: Arc<Store>,
    pub images: Images,
    /// Bundles wait here for a window or an application before they take effect.
    pub updates: UpdateGate,
    pub events: Events,
    pub metrics: Metrics,
}

/// The source of bundles, ready to run.
#[derive(Debug)]
pub struct BundleSource {
    settings: Arc<BundleSettings>,
    staging: Staging,
    node_key: PathBuf,
    store: Arc<Store>,
    images: Images,
    updates: UpdateGate,
    events: Events,
    metrics: Metrics,
    node_name: Arc<str>,
    decoder: Decoder,
    view: View,
    /// The bundle in effect, which a newer one has to replace; `None`: there is none.
    applied: Option<AppliedBundle>,
    /// A newer bundle that is for other nodes, in a sentence.
    outside: Option<String>,
    /// Why the place of a way does not answer.
    problems: BTreeMap<Way, String>,
    /// The places of bundles that are shown as rejected, by the way they came.
    refused: BTreeMap<Way, Vec<Arc<str>>>,
    ready: bool,
    saved: Arc<Saved>,
    /// Writes the history alone: the bundle itself is on disk before it takes effect.
    history: Persister,
    rejection_log: RejectionLog,
    ledger: ChangeLog,
    pulse: Arc<Pulse>,
}

/// A bundle that may take effect.
struct Accepted {
    bundle: Bundle,
    contents: Contents,
    manifest: Manifest,
}

/// What verifying and reading a bundle led to.
enum Examined {
    Unchanged(Box<Bundle>),
    /// It is for other nodes first.
    Outside(Box<Bundle>),
    Accepted(Box<Accepted>),
}

impl BundleSource {
    /// A source of the bundle saved in the store. Nothing is read yet.
    pub fn new(parts: BundleParts, node_name: &str, decoder: Decoder) -> Self {
        let BundleParts { settings, directory, node_key, store, images, updates, events, metrics } = parts;
        let (saved, pulse) = (Arc::default(), Arc::<Pulse>::default());
        store.register(SourceKind::Bundle, &saved);
        Self {
            settings: Arc::new(settings),
            staging: Staging::new(directory),
            node_key,
            history: Persister::new(Arc::clone(&store), SourceKind::Bundle, Arc::clone(&pulse)),
            store,
            images,
            updates,
            events,
            metrics,
            node_name: Arc::from(node_name),
            decoder,
            view: View::default(),
            applied: None,
            outside: None,
            problems: BTreeMap::new(),
            refused: BTreeMap::new(),
            ready: false,
            saved,
            rejection_log: RejectionLog::new(SourceKind::Bundle),
            ledger: ChangeLog::new(SourceKind::Bundle),
            pulse,
        }
    }

    /// When a bundle was last accepted, for users.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Publishes the bundle that the node has, then handles requests until `stop`. `publish` must not block.
    pub async fn run(mut self, mut inbox: BundleInbox, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        self.restore().await;
        self.publish(&publish);
        self.staging.clear().await;
        if let Err(error) = node_key::make_missing(self.node_key.clone()).await {
            let path = self.node_key.display();
            warn!(%path, %error, "the node has no key; bundles with sealed Secrets are refused");
        }
        inbox.tell(self.applied.as_ref());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.history.written() => {}
                request = inbox.recv() => match request {
                    // A bundle that is being read when the agent stops is read again when it is handed over again.
                    Some(request) => {
                        tokio::select! {
                            () = stop.cancelled() => break,
                            () = self.handle(request, &publish) => {}
                        }
                        inbox.tell(self.applied.as_ref());
                    }
                    None => break,
                },
            }
        }
        self.history.flush().await;
    }

    async fn handle(&mut self, request: Request, publish: &impl Fn(Arc<SourceSnapshot>)) {
        match request {
            Request::Apply { path, shown, way, answer } => {
                let result = self.apply(&path, &shown, way, publish).await;
                if let Err(refusal) = &result {
                    self.report_refusal(&shown, way, refusal);
                }
                drop(answer.send(result));
            }
            Request::Report { way, refused } => {
                self.show_refused(way, refused);
                self.publish(publish);
            }
            Request::Reached { way, problem } => {
                self.note_reached(way, problem);
                self.publish(publish);
            }
            Request::PassBy { bundle, percent } => drop(self.pass_by(&bundle, percent)),
            Request::ResetSerial { answer } => drop(answer.send(self.reset_serial().await)),
        }
    }

    async fn restore(&mut self) {
        let load = |store: &Store| store.load::<LastGood>(SourceKind::Bundle);
        let Some(loaded) = self.history.load(load).await else {
            let reason = "the bundle that this node has cannot be read; running pods keep running";
            self.view.finish_update(false, Health::Unavailable(reason.into()));
            return;
        };
        // The store may lack the bundle: its pods are not stopped before the damaged file is removed.
        self.ready = loaded.complete;
        self.ledger.expect(&loaded.records);
        let Some(record) = loaded.records.get(RECORD) else { return };
        let Ok(applied) = serde_json::from_str::<AppliedBundle>(&record.mark) else {
            error!("the record of the bundle that this node has is not readable; running pods keep running");
            self.ready = false;
            return;
        };
        let origin: Arc<str> = Arc::from(applied.name.as_str());
        let contents = self.decoder.restore_all(&record.manifests, &origin, SourceKind::Bundle, &self.node_name);
        info!(bundle = %origin, version = applied.version, pods = contents.pods.len(), "bundle restored");
        self.view.restore(&origin, Arc::new(contents));
        self.pulse.succeeded(record.accepted);
        self.saved.set(record.clone());
        self.has(applied);
    }

    /// Notes what the node has.
    fn has(&mut self, applied: AppliedBundle) {
        self.metrics.set_bundle(&applied.name, applied.serial);
        (self.applied, self.outside) = (Some(applied), None);
        self.show_state();
    }

    /// Shows what the node has, and what is not for it.
    fn show_state(&self) {
        let has = |applied: &AppliedBundle| format!("{} {} serial {}", applied.name, applied.version, applied.serial);
        let has = self.applied.as_ref().map_or_else(|| "none".to_owned(), has);
        let outside = self.outside.as_ref().map(|text| format!("; {text}")).unwrap_or_default();
        self.pulse.set_backend(format!("{has}{outside}"));
    }

    /// Lets a bundle take effect.
    async fn apply(
        &mut self,
        path: &Path,
        shown: &Path,
        way: Way,
        publish: &impl Fn(Arc<SourceSnapshot>),
    ) -> Result<BundleDocument, Refusal> {
        let staged = self.staging.copy(path, self.settings.max_size).await?;
        let accepted = match self.examine(staged.path(), shown, way).await? {
            Examined::Unchanged(bundle) => return Ok(self.document(&bundle, false, Vec::new())),
            Examined::Outside(bundle) => {
                let AppliedBundle { name, version, serial, .. } = &bundle.identity;
                let percent = bundle.config.rollout.unwrap_or(100);
                return Err(Refusal::Outside(self.pass_by(&format!("{name} {version} serial {serial}"), percent)));
            }
            Examined::Accepted(accepted) => *accepted,
        };
        self.demand_changeable(&accepted.manifest)?;
        self.demand_admission(&accepted.bundle, way).await?;
        let images = self.import(&accepted.bundle, staged.path()).await?;
        let Accepted { bundle, contents, manifest } = accepted;
        self.commit(&bundle.identity, &contents).await?;
        drop(staged);
        self.take_effect(&bundle.identity, manifest);
        self.publish(publish);
        let AppliedBundle { name, version, serial, .. } = &bundle.identity;
        let pods = self.view.pods();
        info!(bundle = name, version, serial, pods, ?images, "bundle applied");
        let message = format!("bundle {name} {version} serial {serial}: {pods} pods");
        self.events.emit(None, None, EventType::Normal, "BundleApplied", message);
        Ok(self.document(&bundle, true, images))
    }

    /// Verifies and reads a copy; `shown` is the place that it came from.
    async fn examine(&self, copy: &Path, shown: &Path, way: Way) -> Result<Examined, Refusal> {
        let (copy, shown, settings) = (copy.to_owned(), shown.to_owned(), Arc::clone(&self.settings));
        let node_key = self.node_key.clone();
        let (applied, decoder, node_name) = (self.applied.clone(), self.decoder, Arc::clone(&self.node_name));
        let work = move || {
            let keys = PublicKeys::read(&settings.keys).map_err(limpet_bundle::BundleError::from)?;
            let bundle = Bundle::open(&copy, &shown, &keys, settings.max_size)?;
            // Who applies a bundle by hand has chosen the node.
            let stage = bundle.config.rollout.filter(|_| !way.is_by_hand());
            let stage = stage.map(|percent| (NodePlace::new(&node_name), percent));
            match decide(applied.as_ref(), &bundle.identity, stage) {
                Decision::Outside => return Ok(Examined::Outside(Box::new(bundle))),
                Decision::Unchanged => return Ok(Examined::Unchanged(Box::new(bundle))),
                Decision::Apply => {}
                Decision::Replayed => {
                    let message = applied.map(|applied| replay_message(&applied, &bundle.identity));
                    return Err(Refusal::Replayed { path: shown, message: message.unwrap_or_default() });
                }
            }
            let manifests = bundle.open_manifests(|| NodeKey::read(&node_key))?;
            let manifest = decoder.read(&manifests, &bundle.config.name, SourceKind::Bundle, &node_name);
            if manifest.faults.iter().any(|fault| fault.severity == Severity::Error) {
                return Err(Refusal::Manifests(manifest.faults));
            }
            let contents = Contents {
                pods: manifest.pods.iter().map(|pod| (pod.key.clone(), Arc::clone(pod))).collect(),
                objects: manifest.objects.iter().map(|object| (object.key.clone(), Arc::clone(object))).collect(),
            };
            Ok(Examined::Accepted(Box::new(Accepted { bundle, contents, manifest })))
        };
        let examined = tokio::task::spawn_blocking(work).await;
        examined.unwrap_or_else(|error| Err(Refusal::Internal(error.to_string())))
    }

    /// Notes that a bundle is for other nodes first, says so, and returns it as a sentence.
    fn pass_by(&mut self, bundle: &str, percent: u8) -> String {
        let place = NodePlace::new(&self.node_name);
        let text = format!("{bundle} is for the first {percent} % of the nodes, and this one is at {place}");
        if self.outside.as_ref() != Some(&text) {
            info!("{text}; nothing has changed");
            self.events.emit(None, None, EventType::Normal, "BundleForOthers", text.clone());
            self.outside = Some(text.clone());
            self.show_state();
        }
        text
    }

    /// Refuses to change what is immutable.
    fn demand_changeable(&self, manifest: &Manifest) -> Result<(), Refusal> {
        let now = self.view.snapshot();
        let forbidden = |object: &Arc<ObjectRecord>| now.objects.get(&object.key)?.forbids(object);
        let faults: Vec<Fault> = manifest.objects.iter().filter_map(forbidden).collect();
        if faults.is_empty() { Ok(()) } else { Err(Refusal::Manifests(faults)) }
    }

    /// Holds a bundle that comes by itself while updates may not take effect.
    async fn demand_admission(&self, bundle: &Bundle, way: Way) -> Result<(), Refusal> {
        if way == Way::Hand {
            return Ok(());
        }
        let AppliedBundle { name, version, serial, .. } = &bundle.identity;
        let bundle = format!("bundle {name} {version} serial {serial}");
        let admitted = self.updates.check(Phase::Apply, &subject(bundle.clone(), self.applied.is_none())).await;
        admitted.map_err(|hold| Refusal::Held { bundle, why: hold.to_string() })
    }

    /// Imports the images of a bundle, unless a layer is missing.
    async fn import(&self, bundle: &Bundle, copy: &Path) -> Result<Vec<String>, Refusal> {
        let (images, brought) = (bundle.images()?, bundle.blobs());
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for image in &images {
            let layers = self.images.missing_layers(&image.name, &image.digest, &image.documents, &brought).await?;
            missing.extend(layers.into_iter().map(|layer| format!("{layer} of {}", image.name)));
        }
        match missing.is_empty() {
            true => Ok(self.images.import_archive(copy).await?),
            false => Err(Refusal::Incomplete { bundle: bundle.config.name.clone(), missing }),
        }
    }

    /// Replaces the record of the bundle that the node has, and waits until that is synced. On an error it has the one
    /// before.
    async fn commit(&self, applied: &AppliedBundle, contents: &Contents) -> Result<(), Refusal> {
        let mark = serde_json::to_string(applied).map_err(|error| Refusal::Internal(error.to_string()))?;
        let record = LastGood { mark, ..LastGood::new(contents.manifests(), Timestamp::now()) };
        self.write(record).await
    }

    async fn write(&self, record: LastGood) -> Result<(), Refusal> {
        let mut changes = Changes::default();
        changes.put(Arc::from(RECORD), Some(record.clone()));
        let store = Arc::clone(&self.store);
        let written = tokio::task::spawn_blocking(move || store.apply(SourceKind::Bundle, &changes)).await;
        match written {
            Ok(Ok(_)) => {
                self.saved.set(record);
                self.pulse.succeeded(Timestamp::now());
                Ok(())
            }
            Ok(Err(error)) => Err(Refusal::Unsaved(error_chain(&error))),
            Err(error) => Err(Refusal::Unsaved(error.to_string())),
        }
    }

    /// The bundle is on disk: from now on it is what the node has.
    fn take_effect(&mut self, applied: &AppliedBundle, manifest: Manifest) {
        let origin: Arc<str> = Arc::from(applied.name.as_str());
        self.rejection_log.warnings(&origin, &manifest.faults);
        let is_shown = |name: &Arc<str>| self.refused.values().flatten().any(|shown| shown == name);
        let others = self.view.names().filter(|name| **name != origin && !is_shown(name));
        let others: Vec<Arc<str>> = others.cloned().collect();
        others.iter().for_each(|name| self.view.remove(name));
        self.view.accept(&origin, manifest, Contents::default);
        self.ready = true;
        self.has(applied.clone());
    }

    /// Forgets the serial of the bundle that the node has; its pods continue to run.
    async fn reset_serial(&mut self) -> Result<BundleDocument, Refusal> {
        let (Some(applied), Some(record)) = (self.applied.clone(), self.saved.get()) else {
            return Err(Refusal::NoBundle);
        };
        let applied = AppliedBundle { serial: 0, ..applied };
        let mark = serde_json::to_string(&applied).map_err(|error| Refusal::Internal(error.to_string()))?;
        self.write(LastGood { mark, ..record }).await?;
        warn!(bundle = applied.name, version = applied.version, "the next bundle may have any serial");
        let message = format!("bundle {} {}: the next one may have any serial", applied.name, applied.version);
        self.events.emit(None, None, EventType::Warning, "BundleSerialReset", message);
        let AppliedBundle { name, version, serial, .. } = applied.clone();
        self.has(applied);
        let pods = self.view.pods();
        Ok(BundleDocument { changed: true, name, version, serial, pods, images: Vec::new() })
    }

    fn document(&self, bundle: &Bundle, changed: bool, images: Vec<String>) -> BundleDocument {
        let AppliedBundle { name, version, serial, .. } = bundle.identity.clone();
        BundleDocument { changed, name, version, serial, pods: self.view.pods(), images }
    }

    /// Shows whether the place of a way answers; what the node has stays in effect.
    fn note_reached(&mut self, way: Way, problem: Option<(String, Timestamp)>) {
        match problem {
            None => {
                self.problems.remove(&way);
                self.pulse.succeeded(Timestamp::now());
            }
            Some((reason, retry)) => {
                if self.problems.insert(way, reason.clone()).is_none() {
                    warn!(reason, "bundles cannot be reached");
                }
                self.pulse.retries(retry);
            }
        }
    }

    /// Shows what of a way is refused among the rejected manifests, as long as it is there.
    fn show_refused(&mut self, way: Way, refused: Vec<(PathBuf, String)>) {
        for gone in self.refused.remove(&way).unwrap_or_default() {
            if refused.iter().all(|(path, _)| *path.to_string_lossy() != *gone) {
                self.view.remove(&gone);
            }
        }
        let mut shown = Vec::new();
        for (path, message) in refused {
            let origin: Arc<str> = path.to_string_lossy().into();
            self.view.accept(&origin, Manifest::broken(Fault::error("", message)), Contents::default);
            shown.push(origin);
        }
        self.refused.insert(way, shown);
    }

    fn report_refusal(&self, path: &Path, way: Way, refusal: &Refusal) {
        // An older bundle beside the newest one is no fault, and what is tried again is reported by its outcome.
        let is_quiet = refusal.is_transient() || matches!(refusal, Refusal::Replayed { .. } | Refusal::Outside(_));
        if matches!(refusal, Refusal::Held { .. }) || !way.is_by_hand() && is_quiet {
            return debug!(path = %path.display(), error = %refusal, "bundle not taken");
        }
        warn!(path = %path.display(), error = %refusal, "bundle refused; nothing has changed");
        self.events.emit(None, None, EventType::Warning, "BundleRefused", refusal.to_string());
    }

    fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let problem = self.problems.values().next();
        let health = match problem {
            Some(problem) => Health::Unavailable(format!("{problem}; {} pods are kept", self.view.pods()).into()),
            None if self.ready => Health::Good,
            None => self.view.snapshot().health.clone(),
        };
        if let Some(snapshot) = self.view.finish_update(self.ready, health) {
            let restore = |_: &str, saved: &LastGood| {
                self.decoder.restore_all(&saved.manifests, "bundle", SourceKind::Bundle, &self.node_name)
            };
            // Only the signature identifies who made a bundle.
            let snapshot = self.ledger.enter(snapshot, Timestamp::now(), restore, |_| None);
            self.history.put_history(&snapshot.changes);
            self.rejection_log.snapshot(&snapshot);
            publish(snapshot);
        }
        self.history.write();
    }
}

#[cfg(test)]
mod tests;
