//! What can tell of changes and of who made them, and the ends it has to the rest of the agent.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, watch};

use crate::config::ManifestWatch;
use limpet_model::actor::{Actor, Resident};
use limpet_model::directory_id::DirectoryId;

/// What tells of changes, and of who made them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// That something changed, and not who did it.
    Inotify,
    /// inotify, and fanotify for who did it.
    Fanotify,
    /// inotify, and BPF programs for who did it.
    Ebpf,
}

impl Backend {
    /// Its name in configuration and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inotify => "inotify",
            Self::Fanotify => "fanotify",
            Self::Ebpf => "ebpf",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the watch asks of the rest of the agent, and tells it. Called on the agent's own thread: must not block.
pub trait Onlooker: Send + Sync {
    /// The pod whose cgroup has or contains that path, in whatever hierarchy.
    fn resident(&self, cgroup: &str) -> Option<Resident>;
    /// A process of a pod changed that name in a watched directory.
    fn pod_wrote(&self, name: &OsStr, actor: &Actor);
    /// This is what watches from now on; `lost`: what was wanted or at work and does not work.
    fn watching(&self, backend: Backend, lost: Option<Backend>);
}

/// Nobody lives here and nobody listens.
impl Onlooker for () {
    fn resident(&self, _: &str) -> Option<Resident> {
        None
    }

    fn pod_wrote(&self, _: &OsStr, _: &Actor) {}

    fn watching(&self, _: Backend, _: Option<Backend>) {}
}

/// One change that the kernel's own programs tell of.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// Where.
    pub directory: DirectoryId,
    /// Which name.
    pub name: OsString,
    /// Only mode, owner or times changed.
    pub attributes_only: bool,
    /// Who did it, without user name and resident.
    pub actor: Actor,
    /// The actor's cgroup of version 2.
    pub cgroup_id: Option<u64>,
}

/// Programs in the kernel that tell of changes: the two ends that their loader hands over.
#[derive(Debug)]
pub struct Feed {
    /// Where the directories to look at are put.
    pub directories: watch::Sender<BTreeSet<DirectoryId>>,
    /// What was done in them. It ends when the programs do.
    pub sightings: mpsc::Receiver<Sighting>,
    /// How often something of it was lost: what was told before may be of an earlier change than the last one.
    pub losses: Arc<AtomicU64>,
    /// Odd while what waits in the kernel is told, even when nothing waits there.
    pub progress: Arc<AtomicU64>,
}

/// How the manifests are to be watched.
#[derive(Clone)]
pub struct WatchSettings {
    /// What the configuration asks for.
    pub wanted: ManifestWatch,
    /// Whom to ask and to tell.
    pub onlooker: Arc<dyn Onlooker>,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self { wanted: ManifestWatch::Inotify, onlooker: Arc::new(()) }
    }
}

impl fmt::Debug for WatchSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchSettings").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}
