//! The receiving end of a feed, read by the attributor: the directories that BPF programs watch, and what they report.

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
    /// Only mode, owner or times changed.
    pub attributes_only: bool,
    /// The process, without user name and resident.
    pub actor: Actor,
    /// The actor's v2 cgroup.
    pub cgroup_id: Option<u64>,
}

/// BPF programs that report changes: the channels that their loader passes on.
#[derive(Debug)]
pub struct Feed {
    /// Takes the directories to watch.
    pub directories: watch::Sender<BTreeSet<DirectoryId>>,
    /// The changes in them. Closed when the programs are detached.
    pub sightings: mpsc::Receiver<Sighting>,
    /// How often changes were lost: those reported before may be earlier than the last one of a name.
    pub losses: Arc<AtomicU64>,
    /// Odd while events are being read from the kernel, even when none waits there.
    pub progress: Arc<AtomicU64>,
}
