//! Learns from the kernel that a log goes on, and when its writer is done with it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::timeout;

use limpet_host::path_watch::PathWatch;

/// A writer that is silent for so long after its container's end has written what there was.
const QUIET: Duration = Duration::from_millis(200);
/// And one that is not silent is not waited for longer: processes that outlive their container can go on for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// Notices every change of a log and of the files rotated from it.
#[derive(Debug)]
pub(super) struct LogWatch {
    directory: PathBuf,
    watch: PathWatch,
}

impl LogWatch {
    /// Watches the directory of the log at `path`, from now on.
    ///
    /// # Errors
    /// When there are no more inotify instances.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        let watch = PathWatch::directory(&directory)?;
        Ok(Self { directory, watch })
    }

    /// Returns once something has changed since the watch began, or since the last call. Safe to drop and call again.
    ///
    /// # Errors
    /// `NotFound` when the directory is gone.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        self.watch.changed().await?;
        self.watch.arm()?;
        self.directory.metadata().map(|_| ())
    }
}

/// Waits, after a container's end, until the log at `path` holds its last line: its writer has ended, or is silent.
/// A container's exit is known some milliseconds before its last output is in the file.
pub async fn settle(path: &Path) {
    let Ok(mut watch) = LogWatch::new(path) else {
        if !writer_ended(path) {
            // Nobody tells when it is written to: it gets the time in which a writer falls silent.
            tokio::time::sleep(QUIET).await;
        }
        return;
    };
    let quiet = async { while !writer_ended(path) && matches!(timeout(QUIET, watch.changed()).await, Ok(Ok(()))) {} };
    // Running out of patience is an answer too.
    let _ = timeout(PATIENCE, quiet).await;
}

/// Whether nobody holds the writer's lock on the file.
fn writer_ended(path: &Path) -> bool {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::fs::flock(file, FlockOperation::NonBlockingLockShared))
        != Err(Errno::WOULDBLOCK)
}
