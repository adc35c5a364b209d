//! The active backend: none, fanotify, or BPF programs. Events are read here and evaluated by the
//! [`Attributor`](super::attributor::Attributor).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fanotify::{Drained, Fanotify, Seen};
use crate::cgroup_path;
use crate::feed::{Feed, Sighting};
use crate::process_actor::{bounded, user};
use limpet_model::attribution::WatchObserver;

#[derive(Debug)]
pub(super) enum ActiveBackend {
    /// Without a source: inotify reports changes, but not who made them.
    InotifyOnly,
    Fanotify(Fanotify),
    Ebpf {
        feed: Feed,
        /// The feed's number of losses when last read.
        losses: u64,
        names: Names,
    },
}

impl ActiveBackend {
    /// A backend for this feed. Losses before this call do not count.
    pub(super) fn ebpf(feed: Feed) -> Self {
        let losses = feed.losses.load(Ordering::Relaxed);
        Self::Ebpf { feed, losses, names: Names::default() }
    }

    /// Waits for events and reads them. Cancel safe.
    pub(super) async fn read_events(&mut self, observer: &dyn WatchObserver) -> io::Result<Drained> {
        match self {
            Self::InotifyOnly => std::future::pending().await,
            Self::Fanotify(fanotify) => fanotify.read_events(observer).await,
            Self::Ebpf { feed, losses, names } => match feed.sightings.recv().await {
                Some(first) => Ok(drain(Some(first), feed, losses, names, observer)),
                None => Err(io::Error::other("the BPF programs are detached")),
            },
        }
    }

    /// Odd while events are being read from the kernel, even if none is pending here.
    pub(super) fn progress(&self) -> u64 {
        match self {
            Self::InotifyOnly | Self::Fanotify(_) => 0,
            Self::Ebpf { feed, .. } => feed.progress.load(Ordering::Relaxed),
        }
    }

    /// Reads the pending events.
    pub(super) fn read_pending(&mut self, observer: &dyn WatchObserver) -> io::Result<Drained> {
        match self {
            Self::InotifyOnly => Ok(Drained::default()),
            Self::Fanotify(fanotify) => fanotify.read_pending(observer),
            Self::Ebpf { feed, losses, names } => Ok(drain(None, feed, losses, names, observer)),
        }
    }
}

/// Converts `first` and everything that is queued after it.
fn drain(
    first: Option<Sighting>,
    feed: &mut Feed,
    losses: &mut u64,
    names: &mut Names,
    observer: &dyn WatchObserver,
) -> Drained {
    // The count is read when the channel is empty, because what was lost comes after what is queued.
    let queued = std::iter::from_fn(|| feed.sightings.try_recv().ok());
    let seen = first.into_iter().chain(queued).map(|sighting| names.complete(sighting, observer)).collect();
    let now = feed.losses.load(Ordering::Relaxed);
    Drained { seen, overflow: std::mem::replace(losses, now) != now }
}

/// The names of the last user and the last cgroup, cached for processes that write often.
#[derive(Debug, Default)]
pub(super) struct Names {
    user: Option<(u32, Option<String>, Instant)>,
    cgroup: Option<(u64, Option<String>)>,
}

/// How long a user's name is cached.
const USER_NAME_TTL: Duration = Duration::from_secs(1);

impl Names {
    /// Adds what the kernel does not know: the names of users and pods.
    fn complete(&mut self, sighting: Sighting, observer: &dyn WatchObserver) -> Seen {
        let Sighting { directory, name, attributes_only, mut actor, cgroup_id } = sighting;
        actor.user = actor.uid.and_then(|uid| self.user(uid));
        actor.cgroup = cgroup_id.and_then(|id| self.cgroup(id));
        actor.resident = actor.cgroup.as_deref().and_then(|path| observer.resident(path));
        Seen { directory, name, attributes_only, actor: Arc::new(actor) }
    }

    fn user(&mut self, uid: u32) -> Option<String> {
        match &self.user {
            Some((known, name, at)) if *known == uid && at.elapsed() < USER_NAME_TTL => name.clone(),
            _ => self.user.insert((uid, user(uid), Instant::now())).1.clone(),
        }
    }

    /// The path of the cgroup `id`. An id is never reused, so a cgroup that has been removed still has its former
    /// path.
    fn cgroup(&mut self, id: u64) -> Option<String> {
        match &self.cgroup {
            Some((known, path)) if *known == id && path.is_some() => path.clone(),
            _ => self.cgroup.insert((id, cgroup_path::path_of(id).map(|path| bounded(&path)))).1.clone(),
        }
    }
}
