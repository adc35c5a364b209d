//! What tells who did it at this moment: nobody, fanotify, or programs in the kernel. What it has to say is taken here; what it
//! is worth is the [`Witness`](super::witness::Witness)'s to judge.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::backend::{Feed, Onlooker, Sighting};
use super::cgroup;
use super::fanotify::{Drained, Fanotify, Seen};
use super::process::{bounded, user};

/// Who is at work.
#[derive(Debug)]
pub(super) enum AtWork {
    Nobody,
    Fanotify(Fanotify),
    Ebpf {
        feed: Feed,
        /// How many changes it has not told, as far as that is accounted for.
        lost: u64,
    },
}

impl AtWork {
    /// What is lost before it begins concerns nobody.
    pub(super) fn ebpf(feed: Feed) -> Self {
        let lost = feed.lost.load(Ordering::Relaxed);
        Self::Ebpf { feed, lost }
    }

    /// Waits until there is something to say. Cancel safe.
    pub(super) async fn look(&mut self, onlooker: &dyn Onlooker) -> io::Result<Drained> {
        match self {
            Self::Nobody => std::future::pending().await,
            Self::Fanotify(fanotify) => fanotify.look(onlooker).await,
            Self::Ebpf { feed, lost } => match feed.sightings.recv().await {
                Some(sighting) => {
                    Ok(Drained { seen: vec![complete(sighting, onlooker)], overflow: has_lost(feed, lost) })
                }
                None => Err(io::Error::other("the programs are detached")),
            },
        }
    }

    /// What there is to say now.
    pub(super) fn look_now(&mut self, onlooker: &dyn Onlooker) -> io::Result<Drained> {
        match self {
            Self::Nobody => Ok(Drained::default()),
            Self::Fanotify(fanotify) => fanotify.look_now(onlooker),
            Self::Ebpf { feed, lost } => {
                let mut drained = Drained::default();
                while let Ok(sighting) = feed.sightings.try_recv() {
                    drained.seen.push(complete(sighting, onlooker));
                }
                drained.overflow = has_lost(feed, lost);
                Ok(drained)
            }
        }
    }
}

/// Whether a change was not told since the last time.
fn has_lost(feed: &Feed, known: &mut u64) -> bool {
    let now = feed.lost.load(Ordering::Relaxed);
    std::mem::replace(known, now) != now
}

/// What the agent knows better than the kernel: names of users and pods.
fn complete(sighting: Sighting, onlooker: &dyn Onlooker) -> Seen {
    let Sighting { directory, name, attributes_only, mut actor, cgroup_id } = sighting;
    actor.user = actor.uid.and_then(user);
    actor.cgroup = cgroup_id.and_then(cgroup::path_of).map(|path| bounded(&path));
    actor.resident = actor.cgroup.as_deref().and_then(|path| onlooker.resident(path));
    Seen { directory, name, attributes_only, actor: Arc::new(actor) }
}
