//! Tells when something may have changed about a path that need not exist yet: a file, a directory, a chain of
//! symlinks.
//!
//! inotify watches directories, so a path is followed from directory to directory: each symlink on the way and
//! the file itself are names within a watched directory, and what does not exist is waited for in its nearest
//! existing parent. An event says only that it is time to look again; the caller reads, and arms the watch anew
//! (the way may lead elsewhere now).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inotify::register;

/// Symlinks followed from one path, as the kernel bounds them.
const MAX_LINKS: usize = 40;

/// What is watched in each directory: the names that matter, or all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    All,
    These(BTreeSet<OsString>),
}

/// An armed watch on one path.
#[derive(Debug)]
pub struct PathWatch {
    path: PathBuf,
    /// Whether every entry of the directory at `path` matters, or only `path` itself.
    entries: bool,
    /// Whether an entry matters only once its writer has closed it.
    complete: bool,
    inotify: AsyncFd<OwnedFd>,
    watched: BTreeMap<i32, Names>,
}

impl PathWatch {
    /// Watches one file, its symlinks included.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::new(path, false, false)
    }

    /// Watches a directory: itself and every entry in it.
    pub fn directory(path: &Path) -> io::Result<Self> {
        Self::new(path, true, false)
    }

    /// Watches a directory for files that are whole: closed by their writer, or moved there.
    pub fn complete_files(path: &Path) -> io::Result<Self> {
        Self::new(path, true, true)
    }

    fn new(path: &Path, entries: bool, complete: bool) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = register(inotify, Interest::READABLE)?;
        let mut watch = Self { path: path.to_owned(), entries, complete, inotify, watched: BTreeMap::new() };
        watch.arm()?;
        Ok(watch)
    }

    /// Follows the path anew. Call it after every change, and read only then: what changes after the arming is
    /// reported, what changed before is read.
    pub fn arm(&mut self) -> io::Result<()> {
        let complete = WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let every = complete | WatchFlags::CREATE | WatchFlags::MODIFY;
        let mut now = BTreeMap::new();
        for (directory, names) in self.way() {
            let flags = if self.complete && matches!(names, Names::All) { complete } else { every };
            match inotify::add_watch(self.inotify.get_ref(), &directory, flags) {
                Ok(descriptor) => merge(&mut now, descriptor, names),
                // It went away in between; its parent is watched as well and has told of it.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        for descriptor in self.watched.keys().filter(|descriptor| !now.contains_key(descriptor)) {
            // A directory that is gone took its watch along.
            let _ = inotify::remove_watch(self.inotify.get_ref(), *descriptor);
        }
        self.watched = now;
        Ok(())
    }

    /// Resolves when something that matters may have changed.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(ready.get_inner(), &mut buffer);
            let mut matters = false;
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                        matters |= self.watched.get(&event.wd()).is_some_and(|names| concerns(names, name))
                            || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                    }
                    Err(Errno::AGAIN) => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            ready.clear_ready();
            if matters {
                return Ok(());
            }
        }
    }

    /// The directories to watch and the names in them that lead to the path.
    fn way(&self) -> Vec<(PathBuf, Names)> {
        let mut way = Vec::new();
        let mut path = self.path.clone();
        for _ in 0..MAX_LINKS {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
            // The nearest existing parent, and what is to appear in it.
            let mut parent = parent.to_owned();
            let mut name = name.to_owned();
            while !parent.is_dir() {
                let (Some(above), Some(missing)) = (parent.parent(), parent.file_name()) else { break };
                (name, parent) = (missing.to_owned(), above.to_owned());
            }
            way.push((parent.clone(), Names::These(BTreeSet::from([name]))));
            match std::fs::read_link(&path) {
                Ok(target) => path = parent.join(target),
                Err(_) => break,
            }
        }
        if self.entries {
            way.push((path, Names::All));
        }
        way
    }
}

fn merge(watched: &mut BTreeMap<i32, Names>, descriptor: i32, names: Names) {
    match (watched.get_mut(&descriptor), names) {
        (Some(Names::These(known)), Names::These(more)) => known.extend(more),
        (Some(known), _) => *known = Names::All,
        (None, names) => {
            watched.insert(descriptor, names);
        }
    }
}

/// Whether an event concerns us: about a name that matters, or (no name) about the directory itself.
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

    async fn told(watch: &mut PathWatch) {
        // A bound for a test that fails, not a wait: an event resolves it at once.
        tokio::time::timeout(std::time::Duration::from_secs(20), watch.changed()).await.unwrap().unwrap();
        watch.arm().unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_appears_late() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cni/net.d");
        let mut watch = PathWatch::directory(&path).unwrap();
        std::fs::create_dir(base.path().join("cni")).unwrap();
        told(&mut watch).await;
        std::fs::create_dir(&path).unwrap();
        told(&mut watch).await;
        std::fs::write(path.join("10-x.conflist"), "{}").unwrap();
        told(&mut watch).await;
        std::fs::remove_dir_all(base.path().join("cni")).unwrap();
        told(&mut watch).await;
    }

    #[tokio::test]
    async fn a_file_behind_symlinks_and_its_replacement() {
        let base = tempfile::tempdir().unwrap();
        let run = base.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("stub"), "one").unwrap();
        let file = base.path().join("resolv.conf");
        std::os::unix::fs::symlink("run/stub", &file).unwrap();
        let mut watch = PathWatch::file(&file).unwrap();

        std::fs::write(run.join("stub"), "two").unwrap();
        told(&mut watch).await;
        std::fs::write(run.join("new"), "three").unwrap();
        std::fs::rename(run.join("new"), run.join("stub")).unwrap();
        told(&mut watch).await;
        // Another name in the same directories is of no interest; the link's own replacement is.
        std::fs::write(run.join("other"), "").unwrap();
        std::fs::remove_file(&file).unwrap();
        told(&mut watch).await;
    }
}
