//! What pods have left on a node, anywhere. A listing that fails is an error, and never an empty list.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{TestNode, take_down};
use crate::cni::Cni;
use crate::wait;

impl TestNode {
    /// Waits until no pod has left anything; see [`Self::leftovers`].
    pub fn wait_nothing_runs(&self) -> Result<()> {
        wait::until_none(wait::SOON, "anything of a pod on the node", || self.leftovers())
    }

    /// What exists of any pod: tasks, containers, leases, snapshots except those of images, mounts, files, cgroups
    /// and addresses.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for kind in ["tasks", "containers", "leases"] {
            let listing = self.containerd.ctr(&[kind, "ls", "-q"])?;
            left.extend(listing.lines().map(|id| format!("{kind} {id}")));
        }
        let snapshots = self.containerd.snapshots()?.into_iter().filter(|snapshot| snapshot.kind != "Committed");
        left.extend(snapshots.map(|snapshot| format!("snapshot {} {}", snapshot.key, snapshot.kind)));
        left.extend(self.mounts()?.iter().map(|mount| format!("mount {}", mount.display())));
        let settings = self.agent.settings();
        let below = [
            settings.root().join("pods"),
            settings.run().join("sandboxes"),
            settings.pod_logs(),
            settings.container_logs(),
        ];
        for dir in below {
            left.extend(entries(&dir)?.iter().map(|path| path.display().to_string()));
        }
        let is_pod = |dir: &&PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod"));
        left.extend(self.cgroups().iter().filter(is_pod).map(|dir| dir.display().to_string()));
        left.extend(self.cni.iter().flat_map(Cni::allocated).map(|address| format!("address {address}")));
        Ok(left)
    }

    /// The mounts below the node's directory. Two mounts belong to the node and not to a pod: the directory of
    /// sandboxes, and a small disk in place of the agent's root directory.
    fn mounts(&self) -> Result<Vec<PathBuf>> {
        let settings = self.agent.settings();
        let of_node = [settings.run().join("sandboxes"), settings.root()];
        let mut mounts = take_down::mounts_below(self.dir())?;
        mounts.retain(|point| !of_node.contains(point));
        Ok(mounts)
    }
}

/// The entries of `dir`; a directory that was never created has none.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listing = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("{}", dir.display()))?,
    };
    listing.map(|entry| Ok(entry.with_context(|| format!("{}", dir.display()))?.path())).collect()
}
