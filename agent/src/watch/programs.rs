//! The end of a feed that the loader of the BPF programs holds: which directories they look at, and what they tell.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limpet_bpf::{FileChange, InodeId, Loaded, Operation, Purpose};
use tokio::sync::{mpsc, watch};

use super::actor::Actor;
use super::process::bounded;
use super::{DirectoryId, Feed, Sighting};

/// Changes that may wait for the watch. What finds no room costs an actor, and no change.
const ROOM: usize = 1_024;

/// The loader's end of a [`Feed`].
#[derive(Debug)]
pub struct FeedEnd {
    directories: watch::Receiver<BTreeSet<DirectoryId>>,
    sightings: mpsc::Sender<Sighting>,
    watched: BTreeSet<DirectoryId>,
    lost: Arc<AtomicU64>,
    /// Changes for which the channel had no room.
    unsent: u64,
}

/// A feed of what `loaded` tells.
///
/// # Errors
/// The programs that this kernel refuses, with its reasons: without one of them a change could come without its actor.
pub fn feed(loaded: &Loaded) -> Result<(Feed, FeedEnd), String> {
    let watching = loaded.programs().iter().filter(|program| program.purpose == Purpose::Watch);
    let refused: Vec<String> =
        watching.filter_map(|program| Some(format!("{}: {}", program.hook, program.failure.as_ref()?))).collect();
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    let (directories, wanted) = watch::channel(BTreeSet::new());
    let (tell, sightings) = mpsc::channel(ROOM);
    let lost = Arc::new(AtomicU64::new(loaded.lost()));
    let end =
        FeedEnd { directories: wanted, sightings: tell, watched: BTreeSet::new(), lost: Arc::clone(&lost), unsent: 0 };
    Ok((Feed { directories, sightings, lost }, end))
}

impl FeedEnd {
    /// Resolves when other directories are to be looked at; never once nobody listens any more.
    pub async fn changed(&mut self) {
        if self.directories.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Has the programs look at what is to be looked at.
    pub fn align(&mut self, loaded: &mut Loaded) {
        let wanted = self.directories.borrow_and_update().clone();
        for gone in self.watched.difference(&wanted) {
            loaded.unwatch(inode(*gone));
        }
        for new in wanted.difference(&self.watched) {
            if let Err(error) = loaded.watch(inode(*new)) {
                tracing::warn!(%error, "who changes manifests here is not told");
            }
        }
        self.watched = wanted;
    }

    /// Tells of a change; `unread`: how many found no room in the kernel so far.
    pub fn tell(&mut self, change: FileChange, unread: u64) {
        // Nobody may listen, or too slowly: then the actor is not known.
        self.unsent += u64::from(self.sightings.try_send(sighting(change)).is_err());
        self.lost.store(unread + self.unsent, Ordering::Relaxed);
    }
}

fn inode(id: DirectoryId) -> InodeId {
    InodeId { device: id.device, inode: id.inode }
}

fn sighting(change: FileChange) -> Sighting {
    let FileChange { directory, name, operation, actor, executable } = change;
    Sighting {
        directory: DirectoryId { device: directory.device, inode: directory.inode },
        name: OsString::from_vec(name),
        attributes_only: matches!(operation, Operation::Attributes | Operation::ExtendedAttributes),
        actor: Actor {
            pid: Some(actor.pid),
            parent: actor.parent,
            uid: Some(actor.uid),
            command: Some(bounded(&actor.command)),
            executable: executable.map(|path| bounded(&path)),
            ..Actor::default()
        },
        cgroup_id: Some(actor.cgroup).filter(|id| *id != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_tells_is_a_sighting() {
        let actor = limpet_bpf::Actor { pid: 7, parent: Some(1), uid: 1_000, command: "c\np".to_owned(), cgroup: 0 };
        let change = |operation| FileChange {
            directory: InodeId { device: 3, inode: 4 },
            name: b"a.yaml".to_vec(),
            operation,
            actor: actor.clone(),
            executable: Some("/usr/bin/cp".to_owned()),
        };
        let seen = sighting(change(Operation::MovedTo));
        assert_eq!((seen.directory, seen.name), (DirectoryId { device: 3, inode: 4 }, OsString::from("a.yaml")));
        assert_eq!((seen.actor.pid, seen.actor.uid, seen.cgroup_id), (Some(7), Some(1_000), None));
        assert_eq!(seen.actor.command.as_deref(), Some("c\u{fffd}p"));
        assert_eq!(seen.actor.executable.as_deref(), Some("/usr/bin/cp"));
        assert!(!seen.attributes_only && sighting(change(Operation::Attributes)).attributes_only);
    }
}
