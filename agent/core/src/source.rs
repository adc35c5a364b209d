//! What each source holds: its whole view as one immutable snapshot, what changed in it, what it refuses.
//!
//! The sources themselves (directory, URL, push) read and write; what follows from what they read is decided here.

pub mod change;
pub mod proposal;
pub mod push_error;
pub mod rejection_log;
pub mod resource;
pub mod view;

use std::sync::Arc;

use imbl::OrdMap;

pub use change::{ChangeKind, ManifestChange};
use limpet_model::manifest::{Manifest, Restored};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{Fault, PodKey, PodRecord};
use limpet_model::source::SourceKind;
use view::Contents;

/// One snapshot per source, in the order of [`SourceKind::ALL`].
pub type Snapshots = [Arc<SourceSnapshot>; SourceKind::ALL.len()];

/// The pod of that key of a source that comes before pushes.
pub fn first_claim<'a>(snapshots: &'a Snapshots, key: &PodKey) -> Option<&'a Arc<PodRecord>> {
    snapshots[..SourceKind::Push.index()].iter().find_map(|snapshot| snapshot.pods.get(key))
}

/// A manifest that was not taken, and what runs in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    /// The file or URL.
    pub origin: Arc<str>,
    /// Why, at least one error among them.
    pub faults: Vec<Fault>,
    /// Pods whose last good version is kept because of it.
    pub kept: Vec<PodKey>,
}

/// How a source is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// It has not spoken yet.
    #[default]
    Starting,
    /// What it published is what is there.
    Good,
    /// What it published was there when it looked, but nothing tells it of changes: it looks every so often. The text says
    /// how often and why.
    Blind(Arc<str>),
    /// It cannot read now; what it published last stands. The text says why and what is kept.
    Unavailable(Arc<str>),
}

impl Health {
    /// Whether the source reads its place.
    pub fn reads(&self) -> bool {
        matches!(self, Self::Good | Self::Blind(_))
    }
}

/// One source's whole view at one moment.
#[derive(Debug, Clone, Default)]
pub struct SourceSnapshot {
    /// Every pod of the source, last good versions included.
    pub pods: OrdMap<PodKey, Arc<PodRecord>>,
    /// Pods that claim a key of `pods` and lose it within the source, as the second of two files does.
    pub rivals: OrdMap<PodKey, Arc<[Arc<PodRecord>]>>,
    /// The source's ConfigMaps and Secrets, for its own pods.
    pub objects: OrdMap<ObjectKey, Arc<ObjectRecord>>,
    /// True once the source has read its place for the first time: from then on, what is missing is gone.
    pub ready: bool,
    /// How it is doing.
    pub health: Health,
    /// What was refused, by file or URL.
    pub rejected: OrdMap<Arc<str>, Arc<Rejection>>,
    /// What is new since the snapshot before, for those who tell of it; the merge has no use for it.
    pub changes: Arc<[Arc<ManifestChange>]>,
}

/// Reads a canonical manifest that was accepted once.
pub type Restore = fn(&[u8], &str, SourceKind, &str) -> Result<Restored, Vec<Fault>>;

/// The two ways bytes become pods. Arguments: bytes, origin, source, node name.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// Reads a file, an answer or a push as authored.
    pub read: fn(&[u8], &str, SourceKind, &str) -> Manifest,
    /// Reads a canonical manifest that was accepted once.
    pub restore: Restore,
}

impl Decoder {
    /// What last good manifests hold. What this version of the agent cannot read is left out and told.
    pub fn restore_all(self, manifests: &[Arc<[u8]>], origin: &str, source: SourceKind, node: &str) -> Contents {
        let mut contents = Contents::default();
        for manifest in manifests {
            match (self.restore)(manifest, origin, source, node) {
                Ok(Restored::Pod(pod)) => drop(contents.pods.insert(pod.key.clone(), Arc::from(pod))),
                Ok(Restored::Object(object)) => drop(contents.objects.insert(object.key.clone(), Arc::new(object))),
                Err(faults) => {
                    for fault in faults {
                        tracing::warn!(%source, origin, error = %fault, "last good version is not accepted any more");
                    }
                }
            }
        }
        contents
    }
}
