//! The state of each source as one immutable snapshot: its pods and objects, what changed, and what was rejected.
//!
//! The sources themselves (directory, URL, push) do the I/O; this module decides what their input means.

pub mod change;
pub mod cluster_update;
pub mod delta;
pub mod file_names;
pub mod http_schedule;
pub mod incarnations;
pub mod proposal;
pub mod push;
pub mod push_error;
pub mod rejection_log;
pub mod resource;
pub mod view;

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

pub use change::{ChangeKind, ManifestChange};
use delta::Revision;
use incarnations::Incarnations;
use limpet_model::manifest::{Manifest, Restored};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::field_validation::{FieldValidation, FieldValidations};
use limpet_model::pod::security::SecurityLevels;
use limpet_model::pod::{Fault, PodKey, PodRecord};
use limpet_model::source::SourceKind;
use view::Contents;

/// One snapshot per source, in the order of [`SourceKind::ALL`].
pub type Snapshots = [Arc<SourceSnapshot>; SourceKind::ALL.len()];

/// The pod of that key in a source with precedence over pushes.
pub fn first_claim<'a>(snapshots: &'a Snapshots, key: &PodKey) -> Option<&'a Arc<PodRecord>> {
    snapshots[..SourceKind::Push.index()].iter().find_map(|snapshot| snapshot.pods.get(key))
}

/// A rejected manifest, and what keeps running in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    pub origin: Arc<str>,
    /// Why it was rejected; at least one is an error.
    pub faults: Vec<Fault>,
    /// Pods whose last good version is kept because of it.
    pub kept: Vec<PodKey>,
}

/// The health of a source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// It has not reported yet.
    #[default]
    Starting,
    /// Its snapshot matches the directory or URL.
    Good,
    /// Its snapshot was current at the last scan, but there are no change events, so it rescans periodically. The
    /// text has the interval and the reason.
    Blind(Arc<str>),
    /// It cannot be read at present, so its last snapshot stays in effect. The text has the reason and what is kept.
    Unavailable(Arc<str>),
}

impl Health {
    /// Whether the source can read its directory or URL.
    pub fn reads(&self) -> bool {
        matches!(self, Self::Good | Self::Blind(_))
    }
}

/// One source's complete state at one time.
#[derive(Debug, Clone, Default)]
pub struct SourceSnapshot {
    /// Every pod of the source, including last good versions.
    pub pods: OrdMap<PodKey, Arc<PodRecord>>,
    /// Pods that claim a key of `pods` but lose it to another file of the same source.
    pub rivals: OrdMap<PodKey, Arc<[Arc<PodRecord>]>>,
    /// The source's ConfigMaps and Secrets, for its own pods.
    pub objects: OrdMap<ObjectKey, Arc<ObjectRecord>>,
    /// Which of its workloads were removed and came again.
    pub incarnations: Incarnations,
    /// `None` if the source defines its objects itself, so that one that is not in `objects` does not exist.
    /// Otherwise it fetches what its pods refer to, and only these are known not to exist.
    pub absent: Option<OrdSet<ObjectKey>>,
    /// Whether the source has completed its first read. From then on, a missing pod counts as removed.
    pub ready: bool,
    pub health: Health,
    /// Rejected manifests, by file or URL.
    pub rejected: OrdMap<Arc<str>, Arc<Rejection>>,
    /// Changes since the previous snapshot, for logs, events and history; the merge ignores them.
    pub changes: Arc<[Arc<ManifestChange>]>,
    /// Its place in the source's sequence; `None` for a snapshot that was made in another way. See [`delta`].
    pub revision: Option<Revision>,
}

/// Reads a canonical manifest that was accepted before.
pub type Restore = fn(&[u8], &str, SourceKind, &str) -> Result<Restored, Vec<Fault>>;

/// Reads a file, an HTTP response or a push as authored.
pub type Read = fn(&[u8], &str, SourceKind, &str) -> Manifest;

/// The two ways in which bytes become pods. Arguments: bytes, origin, source, node name.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    read: Read,
    /// Like `read`, for sources with `fieldValidation: warn`.
    read_leniently: Read,
    /// Reads a canonical manifest that was accepted before.
    pub restore: Restore,
    /// The security level of each source's pods.
    pub security: SecurityLevels,
    fields: FieldValidations,
}

impl Decoder {
    /// A decoder that does not restrict pods, and validates every source's fields strictly.
    pub const fn new(read: Read, restore: Restore) -> Self {
        let (security, fields) = (SecurityLevels::PRIVILEGED, FieldValidations::STRICT);
        Self { read, read_leniently: read, restore, security, fields }
    }

    /// The same with these security levels.
    pub fn with_security(self, security: SecurityLevels) -> Self {
        Self { security, ..self }
    }

    /// The same with these field validations, and `read_leniently` for sources that only warn.
    pub fn with_field_validation(self, fields: FieldValidations, read_leniently: Read) -> Self {
        Self { fields, read_leniently, ..self }
    }

    /// Reads a file, an HTTP response or a push as authored, and refuses pods that may not run.
    pub fn read(self, bytes: &[u8], origin: &str, source: SourceKind, node: &str) -> Manifest {
        let read = match self.fields.for_source(source) {
            FieldValidation::Strict => self.read,
            FieldValidation::Warn => self.read_leniently,
        };
        let mut manifest = read(bytes, origin, source, node);
        manifest.enforce(self.security.for_source(source), source);
        manifest
    }

    /// Reads last good manifests. One that this version of the agent cannot read is skipped and logged.
    pub fn restore_all(self, manifests: &[Arc<[u8]>], origin: &str, source: SourceKind, node: &str) -> Contents {
        let mut contents = Contents::default();
        for manifest in manifests {
            match (self.restore)(manifest, origin, source, node) {
                Ok(Restored::Pod(pod)) => drop(contents.pods.insert(pod.key.clone(), Arc::from(pod))),
                Ok(Restored::Object(object)) => drop(contents.objects.insert(object.key.clone(), Arc::new(object))),
                Err(faults) => {
                    for fault in faults {
                        tracing::warn!(%source, origin, error = %fault, "last good version is no longer accepted");
                    }
                }
            }
        }
        contents
    }
}
