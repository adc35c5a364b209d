//! Saves and restores the state of a cluster: etcd's directory, as an operator restores it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Cluster;
use super::certificates::Certificates;

impl Cluster {
    /// Saves the current state. The apiserver and etcd are down meanwhile.
    pub fn back_up(&mut self) -> Result<()> {
        self.while_down(|cluster| {
            fs::remove_dir_all(cluster.backup()).ok();
            copy(cluster.state(), cluster.backup())
        })
    }

    /// Restores the saved state.
    pub fn restore(&mut self) -> Result<()> {
        self.while_down(|cluster| {
            fs::remove_dir_all(cluster.state()).context("etcd's directory")?;
            copy(cluster.backup(), cluster.state())
        })
    }

    /// Recreates it, empty, with the same certificates.
    pub fn recreate(&mut self) -> Result<()> {
        self.while_down(|cluster| fs::remove_dir_all(cluster.state()).context("etcd's directory"))
    }

    /// Replaces it by another cluster: empty, with other authorities and certificates.
    pub fn replace(&mut self) -> Result<()> {
        self.while_down(|cluster| {
            fs::remove_dir_all(cluster.state()).context("etcd's directory")?;
            Certificates::make(&cluster.dir.join("pki")).map(drop)
        })
    }

    fn while_down(&mut self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.stop()?;
        self.etcd.daemon().kill();
        work(self)?;
        self.etcd.start()?;
        self.start()
    }

    fn state(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    fn backup(&self) -> PathBuf {
        self.dir.join("etcd-backup")
    }
}

fn copy(from: PathBuf, to: PathBuf) -> Result<()> {
    let status = Command::new("cp").arg("-a").args([&from, &to]).status()?;
    ensure!(status.success(), "cp -a {} {}", from.display(), to.display());
    Ok(())
}
