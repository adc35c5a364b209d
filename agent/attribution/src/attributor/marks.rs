//! The directories that the active backend reports on. Part of [`super`].
//!
//! fanotify's marks are set on a blocking thread, because the directory's file system is queried and may not answer.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use limpet_model::directory_id::DirectoryId;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::Attributor;
use crate::active_backend::ActiveBackend;
use crate::fanotify::Marked;

/// How long a watch that was moved waits for its marks.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

type Marking = JoinHandle<Vec<Marked>>;

impl Attributor {
    /// Tells the backend which directories to report on now.
    pub(super) fn update_marks(&mut self) {
        let directories = &self.directories;
        match &mut self.active {
            ActiveBackend::InotifyOnly => {}
            ActiveBackend::Ebpf { feed, .. } => {
                let wanted: BTreeSet<DirectoryId> = directories.iter().map(|(_, id)| *id).collect();
                feed.directories.send_if_modified(|now| std::mem::replace(now, wanted.clone()) != wanted);
            }
            ActiveBackend::Fanotify(fanotify) => {
                fanotify.keep_only(|marked| directories.iter().any(|(_, id)| id == marked));
                // A call that hangs holds only one thread, not another one at every change.
                match self.marking {
                    Some(_) => self.mark_again = true,
                    None => self.marking = Some(spawn_blocking(fanotify.marking(directories.clone()))),
                }
            }
        }
    }

    /// Resolves when the marks that were asked for are set, or after [`MARK_TIMEOUT`], in which case they are set
    /// later. Cancel safe.
    pub async fn marked(&mut self) {
        while let Some(marking) = &mut self.marking {
            match timeout(MARK_TIMEOUT, marking).await {
                Ok(marked) => self.take_marks(marked),
                Err(_) => return tracing::debug!("fanotify's marks take long: a file system does not answer"),
            }
        }
    }

    /// Applies the result of setting marks.
    pub(super) fn take_marks(&mut self, marked: Result<Vec<Marked>, JoinError>) {
        self.marking = None;
        let marked = marked.inspect_err(|error| tracing::error!(%error, "setting fanotify's marks panicked"));
        for Marked { path, id, handle } in marked.unwrap_or_default() {
            let ActiveBackend::Fanotify(fanotify) = &mut self.active else { return };
            match handle {
                Ok(handle) => fanotify.marked(id, handle),
                // It was removed in the meantime, which inotify reports.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) if self.directories.first().is_some_and(|(_, main)| *main == id) => {
                    let reason = format!("{}: {error}", path.display());
                    return self.fall_back(&reason);
                }
                Err(error) => {
                    tracing::debug!(%error, directory = %path.display(), "who changes files here is not known");
                }
            }
        }
        if std::mem::take(&mut self.mark_again) {
            self.update_marks();
        }
    }
}

/// The result of setting marks; never resolves while none are being set.
pub(super) async fn next_marks(marking: &mut Option<Marking>) -> Result<Vec<Marked>, JoinError> {
    match marking {
        Some(marking) => marking.await,
        None => std::future::pending().await,
    }
}
