//! The end of the BPF programs that the attributor reads: which directories they look at, and what they report.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use limpet_model::actor::Actor;
use limpet_model::directory_id::DirectoryId;
use tokio::sync::{mpsc, watch};

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
