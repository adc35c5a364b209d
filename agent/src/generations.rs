//! What generations need of the node: their place in the database, the user's check, the programs that a boot is reported
//! to.

mod check;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use limpet_core::known_pods::KeptImages;
use limpet_core::last_good::LastGood;
use limpet_core::source::Decoder;
use limpet_generations::{Archive, Generations, Moment, Policies, Policy, Save, Settings, State};
use limpet_host::blocking::DEADLINE;
use limpet_host::{boot, clock};
use limpet_model::error_chain::error_chain;
use limpet_model::source::SourceKind;
use limpet_telemetry::health::Health;
use limpet_updates::{Phase, Subject, UpdateGate};
use limpet_worker::trials::{PrepareResult, PrepareWork, TrialKeeper};
use tokio::sync::watch;

use limpet_store::{Changes, GenerationDocument, GenerationManifest, SavedCopy, Store};

/// The name of a source's document.
const DOCUMENT: &str = "generations";
/// The file in the run directory that says for which boot the verdict was reported.
const REPORTED: &str = "boot-check";

/// What the configuration says of generations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationSettings {
    pub settings: Settings,
    /// `bootCheckDirectory`: the programs that run after a boot with the result of its check.
    pub boot_check_dir: PathBuf,
}

impl Default for GenerationSettings {
    fn default() -> Self {
        Self { settings: Settings::default(), boot_check_dir: "/etc/limpet/boot-check.d".into() }
    }
}

/// Where generations are kept, and what they are connected to.
#[derive(Debug)]
pub struct NodeKeeper {
    store: Arc<Store>,
    settings: GenerationSettings,
    health: Health,
    shutting_down: watch::Receiver<bool>,
    images: KeptImages,
    /// What holds updates.
    updates: UpdateGate,
    /// The file that says for which boot the verdict was reported, and this boot.
    reported: (PathBuf, Arc<str>),
    /// Of each source.
    held: Vec<Arc<Held>>,
    /// What could not be written.
    unsaved: Mutex<BTreeMap<SourceKind, Changes>>,
}

/// What the keeper is given.
pub struct KeeperParts {
    pub store: Arc<Store>,
    pub settings: GenerationSettings,
    /// The sources of the node.
    pub sources: Vec<SourceKind>,
    pub decoder: Decoder,
    pub node_name: Arc<str>,
    pub health: Health,
    pub shutting_down: watch::Receiver<bool>,
    pub images: KeptImages,
    /// What holds updates.
    pub updates: UpdateGate,
    pub run_dir: PathBuf,
}

/// What is kept of one source, for a database that is damaged.
#[derive(Debug, Default)]
struct Held(Mutex<HeldRecords>);

#[derive(Debug, Default)]
struct HeldRecords {
    manifests: BTreeMap<Arc<str>, GenerationManifest>,
    document: Option<GenerationDocument>,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, HeldRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SavedCopy for Held {
    fn everything(&self) -> Changes {
        let (mut changes, held) = (Changes::default(), self.lock());
        held.manifests.iter().for_each(|(name, record)| changes.put(Arc::clone(name), Some(record.clone())));
        if let Some(document) = &held.document {
            changes.put(Arc::from(DOCUMENT), Some(document.clone()));
        }
        changes
    }
}

/// The generations of the node's sources, as an earlier agent left them and as this boot makes of them; `None`: no source has
/// any. What a source has kept whose policy is off is removed.
pub async fn load(parts: KeeperParts) -> Option<(Generations, Arc<NodeKeeper>)> {
    let policies = policies(&parts);
    let mut loaded = Vec::new();
    let mut held = Vec::new();
    for source in SourceKind::ALL {
        let (of_source, state, archive) = match policies.policy(source) {
            Policy::Off => {
                forget(&parts.store, source).await;
                Default::default()
            }
            _ => read(&parts, source).await,
        };
        let of_source = Arc::new(of_source);
        if policies.policy(source) != Policy::Off {
            parts.store.register(source, &of_source);
            loaded.push((source, state, archive));
        }
        held.push(of_source);
    }
    if policies.are_off() {
        return None;
    }
    let boot: Arc<str> = Arc::from(boot::boot_id().unwrap_or_default());
    let KeeperParts { store, settings, node_name, health, shutting_down, images, updates, run_dir, .. } = parts;
    let reported = (run_dir.join(REPORTED), Arc::clone(&boot));
    let trial = Settings { policies, ..settings.settings.clone() };
    let unsaved = Mutex::default();
    let keeper =
        Arc::new(NodeKeeper { store, settings, health, shutting_down, images, updates, reported, held, unsaved });
    let (mut generations, saves) = Generations::new(trial, (&node_name, &boot), loaded, keeper.now());
    if !saves.is_empty() {
        Arc::clone(&keeper).save(saves).await;
        generations.remembered();
    }
    if keeper.wants_boot_check().await {
        generations.begin_boot_check();
    }
    Some((generations, keeper))
}

/// The policies of the sources that the node has.
fn policies(parts: &KeeperParts) -> Policies {
    let configured = parts.settings.settings.policies;
    parts.sources.iter().fold(Policies::default(), |all, source| all.with(*source, configured.policy(*source)))
}

/// Runs `work` with the database, off the agent's thread.
async fn with_store<T: Send + 'static>(
    store: &Arc<Store>,
    work: impl FnOnce(&Store) -> T + Send + 'static,
) -> Option<T> {
    let store = Arc::clone(store);
    match tokio::task::spawn_blocking(move || work(&store)).await {
        Ok(done) => Some(done),
        Err(error) => {
            tracing::error!(%error, "using the database for generations failed");
            None
        }
    }
}

/// Removes what a source has kept, if it has anything.
async fn forget(store: &Arc<Store>, source: SourceKind) {
    let work = move |store: &Store| {
        let mut changes = Changes::default();
        let Some(_) = store.get::<GenerationDocument>(source, DOCUMENT)? else { return Ok(()) };
        for name in store.load::<GenerationManifest>(source)?.records.into_keys() {
            changes.put::<GenerationManifest>(name, None);
        }
        changes.put::<GenerationDocument>(Arc::from(DOCUMENT), None);
        store.apply(source, &changes).map(drop)
    };
    if let Some(Err(error)) = with_store(store, work).await {
        tracing::error!(%source, error = error_chain(&error), "generations that are off cannot be removed");
    }
}

/// What is kept of a source. Without a document that can be read the source begins anew: what it has runs.
async fn read(parts: &KeeperParts, source: SourceKind) -> (Held, State, Archive) {
    let work = move |store: &Store| {
        let manifests = store.load::<GenerationManifest>(source)?.records;
        Ok::<_, limpet_store::StoreError>((manifests, store.get::<GenerationDocument>(source, DOCUMENT)?))
    };
    let (manifests, document) = match with_store(&parts.store, work).await {
        Some(Ok(records)) => records,
        Some(Err(error)) => {
            tracing::error!(%source, error = error_chain(&error), "generations cannot be read; the source begins anew");
            Default::default()
        }
        None => Default::default(),
    };
    let restore = |number: u64| {
        let LastGood { manifests, mark, .. } = &manifests.get(&*number.to_string())?.0;
        (parts.decoder.restore)(manifests.first()?, mark, source, &parts.node_name).ok()
    };
    let loaded = document.as_ref().map(|document| Archive::load(&document.0, restore));
    if matches!(loaded, Some(None)) {
        tracing::error!(%source, "generations cannot be read; the source begins anew");
    }
    let (state, archive) = loaded.flatten().unwrap_or_default();
    (Held(Mutex::new(HeldRecords { manifests, document })), state, archive)
}

impl NodeKeeper {
    /// Whether the verdict on this boot is to be reported: there are programs for it, and it was not yet.
    async fn wants_boot_check(&self) -> bool {
        let (file, boot) = (self.reported.0.clone(), Arc::clone(&self.reported.1));
        let is_reported =
            tokio::task::spawn_blocking(move || std::fs::read_to_string(file).is_ok_and(|text| *text == *boot));
        !is_reported.await.unwrap_or(true) && !check::programs(&self.settings.boot_check_dir).await.is_empty()
    }

    /// The changes of a save; they are held from now on.
    fn changes(&self, save: Save) -> (SourceKind, Changes) {
        let Save { source, manifests, document } = save;
        let mut unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut changes, mut held) = (unsaved.remove(&source).unwrap_or_default(), self.held[source.index()].lock());
        for (number, stored) in manifests {
            let name: Arc<str> = Arc::from(number.to_string());
            let record = stored.map(|stored| {
                let last_good = LastGood::new(vec![stored.manifest], clock::now().wall);
                GenerationManifest(LastGood { mark: stored.origin.to_string(), ..last_good })
            });
            match &record {
                Some(record) => drop(held.manifests.insert(Arc::clone(&name), record.clone())),
                None => drop(held.manifests.remove(&name)),
            }
            changes.put(name, record);
        }
        let document = GenerationDocument(Arc::from(document));
        held.document = Some(document.clone());
        changes.put(Arc::from(DOCUMENT), Some(document));
        (source, changes)
    }

    /// Writes the changes; those that cannot be written are written with the next ones.
    fn write(&self, all: Vec<(SourceKind, Changes)>) {
        for (source, changes) in all {
            if let Err(error) = self.store.apply(source, &changes) {
                let error = error_chain(&error);
                tracing::error!(%source, error, "generations cannot be saved; what was decided takes effect all the same");
                self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).insert(source, changes);
            }
        }
    }
}

/// The newest version of a source, as people know it.
fn subject(source: SourceKind) -> Subject {
    Subject { what: format!("the newest version of {source}"), source: Some(source), is_first: false }
}

impl TrialKeeper for NodeKeeper {
    fn now(&self) -> Moment {
        Moment { uptime: clock::uptime(), wall: clock::now().wall }
    }

    fn is_able(&self) -> bool {
        self.health.has_containerd() && !*self.shutting_down.borrow()
    }

    fn save(self: Arc<Self>, saves: Vec<Save>) -> BoxFuture<'static, ()> {
        let changes = saves.into_iter().map(|save| self.changes(save)).collect();
        let writing = tokio::task::spawn_blocking(move || self.write(changes));
        Box::pin(async move {
            if tokio::time::timeout(DEADLINE, writing).await.is_err() {
                tracing::error!("saving generations hangs; what was decided takes effect all the same");
            }
        })
    }

    fn prepare(self: Arc<Self>, source: SourceKind, mut work: Box<PrepareWork>) -> BoxFuture<'static, PrepareResult> {
        Box::pin(async move {
            let subject = subject(source);
            self.updates.within(Phase::Download, &subject, &mut work).await?;
            self.updates.pass(Phase::Apply, &subject).await;
            Ok(())
        })
    }

    fn check(self: Arc<Self>, source: SourceKind, number: u64) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move { check::run(&self.settings.settings, source, number).await })
    }

    fn report_boot(self: Arc<Self>, verdict: Result<(), String>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            check::report_boot(&self.settings, verdict).await;
            let (file, boot) = (self.reported.0.clone(), Arc::clone(&self.reported.1));
            let written = tokio::task::spawn_blocking(move || std::fs::write(file, boot.as_bytes())).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "that this boot was reported cannot be noted: another agent will report it again");
            }
        })
    }

    fn keep_images(&self, images: HashSet<String>) {
        self.images.set(images);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
