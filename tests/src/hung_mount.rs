//! A mount whose file system never answers, like that of a server that is gone: FUSE without a daemon.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, UnmountFlags};

/// The mount. An access to a path below it blocks until it is [ended](Self::end) or dropped.
#[derive(Debug)]
pub struct HungMount {
    path: PathBuf,
    /// The kernel's requests wait here; closing it makes them fail.
    requests: Option<File>,
}

impl HungMount {
    /// Mounts it on the directory `path`, which is created.
    ///
    /// # Errors
    /// The kernel has no FUSE, or refuses the mount.
    pub fn on(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        let requests = File::options().read(true).write(true).open("/dev/fuse").context("open /dev/fuse")?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", requests.as_raw_fd());
        let data = std::ffi::CString::new(data)?;
        rustix::mount::mount("limpet-hung", path, "fuse", MountFlags::empty(), data.as_c_str())
            .with_context(|| format!("mount FUSE on {}", path.display()))?;
        Ok(Self { path: path.to_owned(), requests: Some(requests) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends it: calls that wait fail, and the directory below it is visible again.
    pub fn end(&mut self) {
        if self.requests.take().is_some() {
            // If this fails, nothing can be done: the sweep unmounts what is below the node's directory.
            let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        self.end();
    }
}
