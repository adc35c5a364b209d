//! Watches a path that need not exist yet, and reports possible changes: of a file, a directory, a chain of symlinks.
//!
//! inotify watches directories, so a path is followed from directory to directory: each symlink on the way and the
//! file itself are names within a watched directory, and a missing name is awaited in its nearest existing parent. An
//! event only triggers a read. Before it is returned, the path is resolved again, because it may lead elsewhere now.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{ReadFlags, WatchFlags};

use crate::blocking;
use crate::inotify::{Change, Queue, WatchAdder, Wd};

/// The kernel's limit of symlinks in one path.
const MAX_LINKS: usize = 40;

/// Which names are watched in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    All,
    These(BTreeSet<OsString>),
}

/// Resolves when a watched path may have changed; never when it is not watched. Cancel safe.
///
/// # Errors
///
/// As [`PathWatch::changed`].
pub async fn changed(watch: Option<&mut PathWatch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Resolves after `pause`, when a path that is not watched is to be read again; never without one. Cancel safe.
pub async fn after(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// An armed watch on one path.
#[derive(Debug)]
pub struct PathWatch {
    path: PathBuf,
    /// Whether every entry of the directory at `path` matters, or only `path` itself.
    entries: bool,
    /// Whether an entry matters only once its writer has closed it.
    complete: bool,
    queue: Queue,
    watched: HashMap<Wd, Names>,
    /// Whether an event has arrived since the path was resolved.
    stale: bool,
}

impl PathWatch {
    /// Watches one file, its symlinks included.
    pub async fn file(path: &Path) -> io::Result<Self> {
        Self::new(path, false, false).await
    }

    /// Watches a directory: itself and every entry in it.
    pub async fn directory(path: &Path) -> io::Result<Self> {
        Self::new(path, true, false).await
    }

    /// Watches a directory for complete files: closed by their writer, or moved there.
    pub async fn complete_files(path: &Path) -> io::Result<Self> {
        Self::new(path, true, true).await
    }

    async fn new(path: &Path, entries: bool, complete: bool) -> io::Result<Self> {
        let (path, queue, watched) = (path.to_owned(), Queue::new()?, HashMap::new());
        let mut watch = Self { path, entries, complete, queue, watched, stale: false };
        watch.arm().await?;
        Ok(watch)
    }

    /// Resolves the path and watches what it leads through now.
    async fn arm(&mut self) -> io::Result<()> {
        let (path, entries, complete) = (self.path.clone(), self.entries, self.complete);
        let adder = self.queue.adder()?;
        let armed = blocking::run(path.clone(), blocking::DEADLINE, move |_| add(&adder, path, entries, complete));
        let now = armed.await??;
        for wd in self.watched.keys().filter(|wd| !now.contains_key(wd)) {
            self.queue.remove(*wd);
        }
        self.watched = now;
        Ok(())
    }

    /// Resolves when something relevant may have changed. The caller should read only then: later changes are
    /// reported, earlier ones are read. Cancel safe.
    ///
    /// # Errors
    ///
    /// The kernel refuses a watch, or a file system on the way does not respond.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            if self.stale {
                self.arm().await?;
                self.stale = false;
                return Ok(());
            }
            let (changes, _) = self.queue.drain().await?;
            self.stale = changes.iter().any(|change| self.matters(change));
        }
    }

    fn matters(&self, change: &Change) -> bool {
        change.flags.contains(ReadFlags::QUEUE_OVERFLOW)
            || self.watched.get(&change.wd).is_some_and(|names| concerns(names, change.name.as_deref()))
    }
}

/// Watches the directories of `path`. Blocks.
fn add(adder: &WatchAdder, path: PathBuf, entries: bool, complete: bool) -> io::Result<HashMap<Wd, Names>> {
    let closed = WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    let every = closed | WatchFlags::CREATE | WatchFlags::MODIFY;
    let mut now = HashMap::new();
    for (directory, names) in directories(path, entries) {
        let flags = if complete && matches!(names, Names::All) { closed } else { every };
        match adder.add(&directory, flags) {
            Ok(wd) => merge(&mut now, wd, names),
            // It was removed in between; its parent is watched as well and has reported it.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(now)
}

/// The directories to watch, with the names in them through which the path resolves; with `entries`, also its
/// entries.
fn directories(mut path: PathBuf, entries: bool) -> Vec<(PathBuf, Names)> {
    let mut directories = Vec::new();
    for _ in 0..MAX_LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        // The nearest existing parent, and the missing name in it.
        let mut parent = parent.to_owned();
        let mut name = name.to_owned();
        while !parent.is_dir() {
            let (Some(above), Some(missing)) = (parent.parent(), parent.file_name()) else { break };
            (name, parent) = (missing.to_owned(), above.to_owned());
        }
        directories.push((parent.clone(), Names::These(BTreeSet::from([name]))));
        match std::fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => break,
        }
    }
    if entries {
        directories.push((path, Names::All));
    }
    directories
}

fn merge(watched: &mut HashMap<Wd, Names>, wd: Wd, names: Names) {
    match (watched.get_mut(&wd), names) {
        (Some(Names::These(known)), Names::These(more)) => known.extend(more),
        (Some(known), _) => *known = Names::All,
        (None, names) => {
            watched.insert(wd, names);
        }
    }
}

/// Whether an event is relevant: it concerns a watched name or, without a name, the directory itself.
fn concerns(names: &Names, name: Option<&OsStr>) -> bool {
    match (names, name) {
        (Names::All, _) | (_, None) => true,
        (Names::These(names), Some(name)) => names.contains(name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn changed(watch: &mut PathWatch) {
        // The timeout only ends a failing test; an event resolves the wait immediately.
        tokio::time::timeout(std::time::Duration::from_secs(20), watch.changed()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_is_created_later_is_reported() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cni/net.d");
        let mut watch = PathWatch::directory(&path).await.unwrap();
        std::fs::create_dir(base.path().join("cni")).unwrap();
        changed(&mut watch).await;
        std::fs::create_dir(&path).unwrap();
        changed(&mut watch).await;
        std::fs::write(path.join("10-x.conflist"), "{}").unwrap();
        changed(&mut watch).await;
        std::fs::remove_dir_all(base.path().join("cni")).unwrap();
        changed(&mut watch).await;
    }

    #[tokio::test]
    async fn a_file_behind_symlinks_and_its_replacement_are_reported() {
        let base = tempfile::tempdir().unwrap();
        let run = base.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("stub"), "one").unwrap();
        let file = base.path().join("resolv.conf");
        std::os::unix::fs::symlink("run/stub", &file).unwrap();
        let mut watch = PathWatch::file(&file).await.unwrap();

        std::fs::write(run.join("stub"), "two").unwrap();
        changed(&mut watch).await;
        std::fs::write(run.join("new"), "three").unwrap();
        std::fs::rename(run.join("new"), run.join("stub")).unwrap();
        changed(&mut watch).await;
        // Another name in the same directories is ignored; a replacement of the link is reported.
        std::fs::write(run.join("other"), "").unwrap();
        std::fs::remove_file(&file).unwrap();
        changed(&mut watch).await;
    }
}
