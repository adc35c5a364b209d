//! What tells who did it at this moment: nobody, fanotify, or programs in the kernel. What it has to say is taken here; what it
//! is worth is the [`Attributor`](super::attributor::Attributor)'s to judge.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fanotify::{Drained, Fanotify, Seen};
use crate::cgroup_path;
use crate::feed::{Feed, Sighting};
use crate::process_actor::{bounded, user};
use limpet_model::attribution::Onlooker;

/// Who is at work.
#[derive(Debug)]
pub(super) enum ActiveBackend {
    Nobody,
    Fanotify(Fanotify),
    Ebpf {
        feed: Feed,
        /// How often it has lost something, as far as that is accounted for.
        losses: u64,
        names: Names,
    },
}

impl ActiveBackend {
    /// What is lost before it begins concerns nobody.
    pub(super) fn ebpf(feed: Feed) -> Self {
        let losses = feed.losses.load(Ordering::Relaxed);
        Self::Ebpf { feed, losses, names: Names::default() }
    }

    /// Waits until there is something to say. Cancel safe.
    pub(super) async fn look(&mut self, onlooker: &dyn Onlooker) -> io::Result<Drained> {
        match self {
            Self::Nobody => std::future::pending().await,
            Self::Fanotify(fanotify) => fanotify.look(onlooker).await,
            Self::Ebpf { feed, losses, names } => match feed.sightings.recv().await {
                Some(first) => Ok(drain(Some(first), feed, losses, names, onlooker)),
                None => Err(io::Error::other("the programs are detached")),
            },
        }
    }

    /// Odd while there is more to say than was said, even when all has been said at this moment.
    pub(super) fn progress(&self) -> u64 {
        match self {
            Self::Nobody | Self::Fanotify(_) => 0,
            Self::Ebpf { feed, .. } => feed.progress.load(Ordering::Relaxed),
        }
    }

    /// What there is to say now.
    pub(super) fn look_now(&mut self, onlooker: &dyn Onlooker) -> io::Result<Drained> {
        match self {
            Self::Nobody => Ok(Drained::default()),
            Self::Fanotify(fanotify) => fanotify.look_now(onlooker),
            Self::Ebpf { feed, losses, names } => Ok(drain(None, feed, losses, names, onlooker)),
        }
    }
}

/// `first`, and all that waits behind it.
fn drain(
    first: Option<Sighting>,
    feed: &mut Feed,
    losses: &mut u64,
    names: &mut Names,
    onlooker: &dyn Onlooker,
) -> Drained {
    // Before the channel is empty nothing is known of what was lost: it is of a change after those that wait.
    let waiting = std::iter::from_fn(|| feed.sightings.try_recv().ok());
    let seen = first.into_iter().chain(waiting).map(|sighting| names.complete(sighting, onlooker)).collect();
    let now = feed.losses.load(Ordering::Relaxed);
    Drained { seen, overflow: std::mem::replace(losses, now) != now }
}

/// The last user and the last cgroup, for writers that write much.
#[derive(Debug, Default)]
pub(super) struct Names {
    user: Option<(u32, Option<String>, Instant)>,
    cgroup: Option<(u64, Option<String>)>,
}

/// A user's name may be another one after so long.
const USER_LASTS: Duration = Duration::from_secs(1);

impl Names {
    /// What the agent knows better than the kernel: names of users and pods.
    fn complete(&mut self, sighting: Sighting, onlooker: &dyn Onlooker) -> Seen {
        let Sighting { directory, name, attributes_only, mut actor, cgroup_id } = sighting;
        actor.user = actor.uid.and_then(|uid| self.user(uid));
        actor.cgroup = cgroup_id.and_then(|id| self.cgroup(id));
        actor.resident = actor.cgroup.as_deref().and_then(|path| onlooker.resident(path));
        Seen { directory, name, attributes_only, actor: Arc::new(actor) }
    }

    fn user(&mut self, uid: u32) -> Option<String> {
        match &self.user {
            Some((known, name, at)) if *known == uid && at.elapsed() < USER_LASTS => name.clone(),
            _ => self.user.insert((uid, user(uid), Instant::now())).1.clone(),
        }
    }

    /// A number is given to one cgroup only; one that is gone has the path it had.
    fn cgroup(&mut self, id: u64) -> Option<String> {
        match &self.cgroup {
            Some((known, path)) if *known == id && path.is_some() => path.clone(),
            _ => self.cgroup.insert((id, cgroup_path::path_of(id).map(|path| bounded(&path)))).1.clone(),
        }
    }
}
