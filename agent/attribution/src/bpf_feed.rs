//! The sending end of a feed, held by the loader of the BPF programs. It applies the watched directories and forwards
//! changes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limpet_bpf::{Event, Events, FileChange, InodeId, Loaded, Operation, Purpose};
use tokio::sync::{mpsc, watch};

use crate::feed::{Feed, Sighting};
use crate::process_actor::bounded;
use limpet_model::actor::Actor;
use limpet_model::directory_id::DirectoryId;

/// How many changes may be queued for the watch. A change that does not fit loses its actor, but is not missed.
const CAPACITY: usize = 1_024;

/// The loader's end of a [`Feed`].
#[derive(Debug)]
pub struct FeedEnd {
    directories: watch::Receiver<BTreeSet<DirectoryId>>,
    sightings: mpsc::Sender<Sighting>,
    watched: BTreeSet<DirectoryId>,
    losses: Arc<AtomicU64>,
    progress: Arc<AtomicU64>,
    /// How many changes did not fit into the channel.
    unsent: u64,
    /// How many lost changes the watch knows of.
    missing: u64,
    in_doubt: bool,
}

/// Makes a feed of the changes that `loaded` reports.
///
/// # Errors
///
/// The programs that this kernel refuses, with its reasons: without one of them a change could come without its
/// actor.
pub fn feed(loaded: &Loaded) -> Result<(Feed, FeedEnd), String> {
    let watching = loaded.programs().iter().filter(|program| program.purpose == Purpose::Watch);
    let refused: Vec<String> =
        watching.filter_map(|program| Some(format!("{}: {}", program.hook, program.failure.as_ref()?))).collect();
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    let (directories, wanted) = watch::channel(BTreeSet::new());
    let (sender, sightings) = mpsc::channel(CAPACITY);
    let (losses, progress) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let end = FeedEnd {
        directories: wanted,
        sightings: sender,
        watched: BTreeSet::new(),
        losses: Arc::clone(&losses),
        progress: Arc::clone(&progress),
        unsent: 0,
        missing: loaded.lost(),
        in_doubt: false,
    };
    Ok((Feed { directories, sightings, losses, progress }, end))
}

impl FeedEnd {
    /// Resolves when other directories are to be watched; never resolves once the receiver is gone.
    pub async fn changed(&mut self) {
        if self.directories.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Tells the programs which directories to watch.
    pub fn align(&mut self, loaded: &mut Loaded) {
        let wanted = self.directories.borrow_and_update().clone();
        for gone in self.watched.difference(&wanted) {
            loaded.unwatch(inode(*gone));
        }
        for new in wanted.difference(&self.watched) {
            if let Err(error) = loaded.watch(inode(*new)) {
                tracing::warn!(%error, "a directory is not watched by BPF programs: who changes manifests there is not known");
            }
        }
        self.watched = wanted;
    }

    /// Forwards `event` and those queued after it, if the programs report only changes.
    pub async fn forward_all(&mut self, event: Event, events: &mut Events, loaded: &Loaded) {
        self.account(loaded.lost(), false);
        let mut queued = Some(event);
        while let Some(event) = queued {
            if let Event::Write(change) = event {
                self.forward(change).await;
            }
            queued = events.now();
        }
        self.account(loaded.lost(), true);
    }

    /// Forwards a change.
    pub async fn forward(&mut self, change: FileChange) {
        if self.sightings.capacity() == 0 {
            // Lets the watch run. Meanwhile further events wait in the kernel.
            tokio::task::yield_now().await;
        }
        // The receiver may be gone or too slow; then the change has no actor.
        self.unsent += u64::from(self.sightings.try_send(sighting(change)).is_err());
    }

    /// Counts losses, before and after a batch of changes is forwarded. `unread` is how many changes the kernel has
    /// dropped so far; `drained` says that none is waiting there. After a loss everything that is forwarded until
    /// then is in doubt, because it may be an earlier change.
    pub fn account(&mut self, unread: u64, drained: bool) {
        let missing = unread + self.unsent;
        let doubtful = self.in_doubt || missing != self.missing;
        (self.missing, self.in_doubt) = (missing, doubtful && !drained);
        if doubtful {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        let is_forwarding = self.progress.load(Ordering::Relaxed) % 2 == 1;
        self.progress.fetch_add(u64::from(is_forwarding == drained), Ordering::Relaxed);
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
    fn changes_between_a_loss_and_the_next_drained_batch_are_in_doubt() {
        let (_directories, wanted) = watch::channel(BTreeSet::new());
        let (sender, _sightings) = mpsc::channel(1);
        let (losses, progress) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (watched, mut published) = (BTreeSet::new(), Vec::new());
        let mut end = FeedEnd {
            directories: wanted,
            sightings: sender,
            watched,
            losses: Arc::clone(&losses),
            progress: Arc::clone(&progress),
            unsent: 0,
            missing: 7,
            in_doubt: false,
        };
        // A batch without a loss, then one before which two were lost, over several rounds, then one without a loss
        // again.
        for (unread, drained) in [(7, false), (7, true), (9, false), (9, false), (9, false), (9, true), (9, false)] {
            end.account(unread, drained);
            published.push((losses.load(Ordering::Relaxed), progress.load(Ordering::Relaxed)));
        }
        assert_eq!(published, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 3), (4, 4), (4, 5)]);
    }

    #[test]
    fn a_file_change_becomes_a_sighting() {
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
