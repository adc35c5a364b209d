//! What the server asks of the sources.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use limpet_core::source::{ManifestChange, SourceSnapshot};
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;

/// One source as people see it.
#[derive(Debug, Clone)]
pub struct SourceView {
    /// Which kind it is.
    pub kind: SourceKind,
    /// Where it reads: a directory, a URL.
    pub place: Arc<str>,
    /// How it learns of changes: `inotify`, `fanotify`; empty when there is nothing to say.
    pub backend: Arc<str>,
    /// When it last read its place in full without trouble.
    pub last_good: Option<Timestamp>,
    /// When it tries again, after a failure.
    pub next_retry: Option<Timestamp>,
    /// Why the disk does not take what it accepts.
    pub unkept: Option<Arc<String>>,
    /// What it publishes.
    pub snapshot: Arc<SourceSnapshot>,
}

/// The configured sources, in order of precedence. Asked at each request: loads snapshots and returns at once.
///
/// Whoever publishes a snapshot calls `Observed::touch`, so that those who watch see new rejections.
pub trait Sources: Send + Sync {
    /// All configured sources as they stand.
    fn views(&self) -> Vec<SourceView>;

    /// The last changes of a pod's manifest, the oldest first. Reads the database.
    ///
    /// # Errors
    /// It cannot be read; in words.
    fn history(&self, _: &PodKey) -> Result<Vec<ManifestChange>, String> {
        Ok(Vec::new())
    }

    /// Damaged databases that were set aside, the newest last. Reads a directory.
    fn damaged(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

impl<F: Fn() -> Vec<SourceView> + Send + Sync> Sources for F {
    fn views(&self) -> Vec<SourceView> {
        self()
    }
}
