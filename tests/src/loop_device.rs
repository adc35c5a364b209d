//! A block device of the node: a loop device with its own file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;

/// Its size in bytes.
const SIZE: u64 = 4 << 20;

/// The device, which is detached when it is dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Creates `file` and a device with it.
    ///
    /// # Errors
    /// No loop device is free, or losetup does not exist.
    pub fn attach(file: &Path) -> Result<Self> {
        File::create(file)?.set_len(SIZE)?;
        let attached = process::checked(Command::new("losetup").args(["--find", "--show"]).arg(file));
        let path = attached.with_context(|| format!("attach a loop device to {}", file.display()))?;
        Ok(Self(PathBuf::from(path.trim())))
    }

    /// Its node below `/dev`.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").arg("--detach").arg(&self.0).status().ok();
    }
}
