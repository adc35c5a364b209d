//! The receiving end of a feed, read by the attributor: which directories BPF programs watch, and what they report.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use limpet_model::actor::Actor;
use limpet_model::directory_id::DirectoryId;
use tokio::sync::{mpsc, watch};

/// One change that a BPF program reported.
#[derive(Debug, Clone)]
pub struct Sighting {
    pub directory: DirectoryId,
    pub name: OsString,
    /// Whether only mode, owner or times changed.
    pub attributes_only: bool,
    /// The process, without the user's name and the pod.
    pub actor: Actor,
    /// The actor's v2 cgroup.
    pub cgroup_id: Option<u64>,
}

/// The channels to and from BPF programs that report changes. Their loader passes them on.
#[derive(Debug)]
pub struct Feed {
    /// Takes the directories to watch.
    pub directories: watch::Sender<BTreeSet<DirectoryId>>,
    /// The changes in them. It is closed when the programs are detached.
    pub sightings: mpsc::Receiver<Sighting>,
    /// How often changes were lost. Those reported before a loss may not be the last change of their name.
    pub losses: Arc<AtomicU64>,
    /// Odd while events are being read from the kernel, even if none is waiting there.
    pub progress: Arc<AtomicU64>,
}
