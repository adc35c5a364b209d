//! What of generations is on disk: each manifest once, however many generations have it, and a document that names them.
//!
//! Names are numbers, and no hashes: what is written of a Secret beside the sealed manifest tells nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use limpet_model::manifest::Restored;
use limpet_model::object::ObjectRecord;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use serde::{Deserialize, Serialize};

use crate::content::{Content, ItemKey, same_object, same_pod};
use crate::state::{Generation, Outcome, State, Trial};

/// One manifest of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredManifest {
    /// The file or URL it is from, which messages name.
    pub origin: Arc<str>,
    /// The manifest as canonical JSON, which restores the record with its fingerprint.
    pub manifest: Arc<[u8]>,
}

/// What is to be written of one source, in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Save {
    pub source: SourceKind,
    /// By their numbers; `None`: no generation has it any more.
    pub manifests: Vec<(u64, Option<StoredManifest>)>,
    pub document: Vec<u8>,
}

/// The form on disk. Fields are only ever added.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    last_number: u64,
    last_manifest: u64,
    running: Option<u64>,
    generations: Vec<StoredGeneration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<Trial>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    restarts: BTreeMap<String, (String, u32)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredGeneration {
    number: u64,
    made: Timestamp,
    outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided: Option<Timestamp>,
    manifests: Vec<u64>,
}

/// The manifests that are on disk, with their numbers.
#[derive(Debug, Default)]
pub struct Archive {
    last: u64,
    items: BTreeMap<ItemKey, Vec<(u64, Item)>>,
}

#[derive(Debug, Clone)]
enum Item {
    Pod(Arc<PodRecord>),
    Object(Arc<ObjectRecord>),
}

impl Item {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(a), Self::Pod(b)) => Arc::ptr_eq(a, b) || a.origin == b.origin && same_pod(a, b),
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b) || a.origin == b.origin && same_object(a, b),
            _ => false,
        }
    }

    fn stored(&self) -> StoredManifest {
        match self {
            Self::Pod(pod) => StoredManifest { origin: Arc::clone(&pod.origin), manifest: Arc::clone(&pod.manifest) },
            Self::Object(object) => StoredManifest { origin: Arc::clone(&object.origin), manifest: object.manifest() },
        }
    }
}

impl Archive {
    /// What is to be written so that `state` is on disk.
    pub fn save(&mut self, source: SourceKind, state: &State) -> Save {
        let (mut manifests, mut used) = (Vec::new(), BTreeSet::new());
        let mut generations = Vec::with_capacity(state.generations.len());
        for generation in &state.generations {
            let pods = generation
                .content
                .pods
                .iter()
                .map(|(key, pod)| (ItemKey::Pod(key.clone()), Item::Pod(Arc::clone(pod))));
            let objects = generation.content.objects.iter();
            let objects = objects.map(|(key, object)| (ItemKey::Object(key.clone()), Item::Object(Arc::clone(object))));
            let numbers: Vec<u64> =
                pods.chain(objects).map(|(key, item)| self.number(key, item, &mut manifests)).collect();
            used.extend(numbers.iter().copied());
            generations.push(StoredGeneration {
                number: generation.number,
                made: generation.made,
                outcome: generation.outcome.clone(),
                decided: generation.decided,
                manifests: numbers,
            });
        }
        for items in self.items.values_mut() {
            items.retain(|(number, _)| {
                let is_used = used.contains(number);
                if !is_used {
                    manifests.push((*number, None));
                }
                is_used
            });
        }
        self.items.retain(|_, items| !items.is_empty());
        let (last_number, running, trial) = (state.last_number, state.running, state.trial.clone());
        let (last_manifest, restarts) = (self.last, state.restarts.clone());
        let document = Document { last_number, last_manifest, running, generations, trial, restarts };
        // Its maps have texts as keys, and writing to memory cannot fail.
        Save { source, manifests, document: serde_json::to_vec(&document).unwrap_or_default() }
    }

    /// The number of that manifest; a new one is added to what is written.
    fn number(&mut self, key: ItemKey, item: Item, manifests: &mut Vec<(u64, Option<StoredManifest>)>) -> u64 {
        let known = self.items.entry(key).or_default();
        if let Some((number, _)) = known.iter().find(|(_, stored)| stored.is_same(&item)) {
            return *number;
        }
        self.last += 1;
        manifests.push((self.last, Some(item.stored())));
        known.push((self.last, item));
        self.last
    }

    /// What [`Self::save`] wrote; `None`: the document cannot be read. `restore` returns the manifest of a number. A
    /// generation of which one is missing is left out; if it is the one in effect, so is everything.
    pub fn load(document: &[u8], restore: impl Fn(u64) -> Option<Restored>) -> Option<(State, Self)> {
        let mut document: Document = serde_json::from_slice(document).ok()?;
        let mut archive = Self { last: document.last_manifest, items: BTreeMap::new() };
        let (mut restored, mut generations) = (BTreeMap::new(), Vec::new());
        for stored in std::mem::take(&mut document.generations) {
            let mut content = Content::default();
            let is_whole = stored.manifests.iter().all(|number| {
                let item = restored.entry(*number).or_insert_with(|| restore(*number).map(Item::from));
                item.as_ref().map(|item| content.insert(item)).is_some()
            });
            if is_whole {
                let StoredGeneration { number, made, outcome, decided, .. } = stored;
                generations.push(Arc::new(Generation { number, content, made, outcome, decided }));
            }
        }
        for (number, item) in restored.into_iter().filter_map(|(number, item)| Some((number, item?))) {
            archive.items.entry(item.key()).or_default().push((number, item));
        }
        let has = |number: &u64| generations.iter().any(|generation| generation.number == *number);
        let running = document.running.filter(has);
        let mut trial = document.trial.take().filter(|_| running.is_some());
        if let Some(trial) = &mut trial {
            trial.base = trial.base.filter(has);
        }
        let Document { last_number, restarts, .. } = document;
        let state = State { generations, running, trial, restarts, last_number };
        Some((state, archive))
    }
}

impl From<Restored> for Item {
    fn from(restored: Restored) -> Self {
        match restored {
            Restored::Pod(pod) => Self::Pod(Arc::from(pod)),
            Restored::Object(object) => Self::Object(Arc::new(object)),
        }
    }
}

impl Item {
    fn key(&self) -> ItemKey {
        match self {
            Self::Pod(pod) => ItemKey::Pod(pod.key.clone()),
            Self::Object(object) => ItemKey::Object(object.key.clone()),
        }
    }
}

impl Content {
    fn insert(&mut self, item: &Item) {
        match item {
            Item::Pod(pod) => drop(self.pods.insert(pod.key.clone(), Arc::clone(pod))),
            Item::Object(object) => drop(self.objects.insert(object.key.clone(), Arc::clone(object))),
        }
    }
}
