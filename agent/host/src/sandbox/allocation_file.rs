//! A file in each sandbox's directory that records an exclusive allocation: ids, or an SELinux level.
//!
//! The allocation lasts until the file is removed, so it survives a restart of the agent.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{SandboxError, ignore_not_found};

/// The files of one kind of allocation.
pub(super) struct AllocationFile {
    name: &'static str,
    /// Held while an allocation is chosen and written. It guards no data.
    allocating: Mutex<()>,
}

impl AllocationFile {
    /// `name` is the file's name in the directory of a sandbox.
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, allocating: Mutex::new(()) }
    }

    /// Excludes other allocations of this kind until the guard is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.allocating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation of the sandbox in `dir`, if any.
    pub(super) fn read(&self, dir: &Path) -> Result<Option<String>, SandboxError> {
        let file = self.path(dir);
        match std::fs::read_to_string(&file) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SandboxError::path("read", &file, source)),
        }
    }

    /// The allocations of all sandboxes below `sandboxes`.
    pub(super) fn read_all(&self, sandboxes: &Path) -> Result<Vec<String>, SandboxError> {
        let list = |source| SandboxError::path("list", sandboxes, source);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(sandboxes).map_err(list)? {
            all.extend(self.read(&entry.map_err(list)?.path())?);
        }
        Ok(all)
    }

    /// Writes the allocation of the sandbox in `dir`.
    pub(super) fn write(&self, dir: &Path, text: &str) -> Result<(), SandboxError> {
        let file = self.path(dir);
        std::fs::write(&file, text).map_err(|source| SandboxError::path("write", &file, source))
    }

    /// Releases the allocation of the sandbox in `dir`; a missing one counts as success.
    pub(super) fn remove(&self, dir: &Path) -> Result<(), SandboxError> {
        let file = self.path(dir);
        ignore_not_found(std::fs::remove_file(&file)).map_err(|source| SandboxError::path("remove", &file, source))
    }

    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.name)
    }
}
