//! The server's view of the sources.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use limpet_core::source::{ManifestChange, SourceSnapshot};
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;

/// A source as shown to users.
#[derive(Debug, Clone)]
pub struct SourceView {
    pub kind: SourceKind,
    /// The directory or URL it reads.
    pub place: Arc<str>,
    /// How it detects changes: `inotify`, `fanotify`; may be empty.
    pub backend: Arc<str>,
    /// When it last read everything without errors.
    pub last_good: Option<Timestamp>,
    /// When it retries after a failure.
    pub next_retry: Option<Timestamp>,
    /// Why accepted manifests cannot be saved to disk.
    pub persist_error: Option<Arc<String>>,
    pub snapshot: Arc<SourceSnapshot>,
}

/// The configured sources, in order of precedence. Called for each request: loads snapshots and returns immediately.
///
/// The publisher of a snapshot calls `Observed::touch`, so that watches see new rejections.
pub trait Sources: Send + Sync {
    /// All configured sources with their current state.
    fn views(&self) -> Vec<SourceView>;

    /// The last changes of a pod's manifest, oldest first. Reads the database.
    ///
    /// # Errors
    ///
    /// A message if the database cannot be read.
    fn history(&self, _: &PodKey) -> Result<Vec<ManifestChange>, String> {
        Ok(Vec::new())
    }

    /// Damaged databases that were set aside, newest last. Reads a directory.
    fn damaged(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

impl<F: Fn() -> Vec<SourceView> + Send + Sync> Sources for F {
    fn views(&self) -> Vec<SourceView> {
        self()
    }
}
