//! How manifests are watched, and who is asked and informed about those who change them.

use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

use crate::actor::{Actor, Resident};

/// What tells of changes of manifests, and of who makes them (`manifestWatch`). inotify always watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManifestWatch {
    /// The best that works here.
    #[default]
    Auto,
    /// inotify alone: who makes a change is not known.
    Inotify,
    /// fanotify tells who.
    Fanotify,
    /// BPF programs tell who.
    Ebpf,
}

impl ManifestWatch {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Inotify, Self::Fanotify, Self::Ebpf];

    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Inotify => "inotify",
            Self::Fanotify => "fanotify",
            Self::Ebpf => "ebpf",
        }
    }
}

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
