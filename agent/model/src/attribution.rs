//! Settings of the manifest watch, and the interface between its attribution of changes and the agent.

use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

use crate::actor::{Actor, ActorPod};

/// Which backend attributes changes of manifests to processes (`manifestWatch`). inotify reports the changes in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManifestWatch {
    /// The best backend that works on this node.
    #[default]
    Auto,
    /// inotify alone: changes are not attributed.
    Inotify,
    /// fanotify attributes changes.
    Fanotify,
    /// BPF programs attribute changes.
    Ebpf,
}

impl ManifestWatch {
    /// All values, in the order of the documentation.
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

/// The active backend of the manifest watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// inotify alone: changes without attribution.
    Inotify,
    /// inotify, with fanotify for attribution.
    Fanotify,
    /// inotify, with BPF programs for attribution.
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

/// The watch's callbacks into the rest of the agent. They run on the agent's own thread, so they must not block.
pub trait WatchObserver: Send + Sync {
    /// The pod that owns that cgroup path or an ancestor of it, in any hierarchy.
    fn resident(&self, cgroup: &str) -> Option<ActorPod>;
    /// Reports that a process of a pod changed that name in a watched directory.
    fn pod_wrote(&self, name: &OsStr, actor: &Actor);
    /// Reports the backend that is active from now on. `lost` is the requested or previously active one that failed.
    fn watching(&self, backend: Backend, lost: Option<Backend>);
}

/// Knows no pods and ignores reports.
impl WatchObserver for () {
    fn resident(&self, _: &str) -> Option<ActorPod> {
        None
    }

    fn pod_wrote(&self, _: &OsStr, _: &Actor) {}

    fn watching(&self, _: Backend, _: Option<Backend>) {}
}

/// The settings of the manifest watch.
#[derive(Clone)]
pub struct WatchSettings {
    pub wanted: ManifestWatch,
    pub observer: Arc<dyn WatchObserver>,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self { wanted: ManifestWatch::Inotify, observer: Arc::new(()) }
    }
}

impl fmt::Debug for WatchSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchSettings").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}
