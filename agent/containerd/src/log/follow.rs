//! Watches a log with inotify, and detects when its writer is done.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::time::timeout;

use limpet_host::blocking;
use limpet_host::path_watch::PathWatch;
use limpet_log::directory::open_file;

/// A writer that has been silent this long after its container's exit has written everything.
const SILENCE_AFTER_EXIT: Duration = Duration::from_millis(200);
/// The longest wait for a writer that is not silent: processes that outlive their container may write forever.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Reports every change of a log and of the files rotated from it.
#[derive(Debug)]
pub(super) struct LogWatch {
    directory: PathBuf,
    watch: PathWatch,
}

impl LogWatch {
    /// Watches the directory of the log at `path`.
    ///
    /// # Errors
    ///
    /// No inotify instances are left.
    pub(super) async fn new(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        let watch = PathWatch::directory(&directory).await?;
        Ok(Self { directory, watch })
    }

    /// Returns once something has changed since the watch began, or since the last call. Cancel safe.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory was removed.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        self.watch.changed().await?;
        let directory = self.directory.clone();
        blocking::run(self.directory.clone(), blocking::DEADLINE, move |_| directory.metadata().map(|_| ())).await?
    }
}

/// Waits, after a container's exit, until the log at `path` contains its last line: its writer has exited, or is
/// silent. A container's exit is reported some milliseconds before its last output is in the file.
pub async fn wait_for_writer(path: &Path) {
    let Ok(mut watch) = LogWatch::new(path).await else {
        if !writer_exited(path).await {
            // Changes of the log are not reported, so this waits for the silence period instead.
            tokio::time::sleep(SILENCE_AFTER_EXIT).await;
        }
        return;
    };
    let quiet = async {
        while !writer_exited(path).await && matches!(timeout(SILENCE_AFTER_EXIT, watch.changed()).await, Ok(Ok(()))) {}
    };
    // A timeout is fine too.
    let _ = timeout(MAX_WAIT, quiet).await;
}

/// Whether no process holds the writer's lock on the file. A file system that does not respond counts as unlocked.
async fn writer_exited(path: &Path) -> bool {
    let file = path.to_owned();
    let locked = blocking::run(path.to_owned(), blocking::DEADLINE, move |_| {
        let file = open_file(&file)?;
        Ok::<_, io::Error>(rustix::fs::flock(file, FlockOperation::NonBlockingLockShared)?)
    });
    !matches!(locked.await, Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock)
}
