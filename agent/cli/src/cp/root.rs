//! A container's file system, seen from the node: every path in it is resolved inside it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::tree::{CopyError, Owner, Source, Target};
use limpet_host::confined::{self, Confinement};
use limpet_host::process;
use limpet_model::container::ContainerId;

/// The root directory of a container's first process.
#[derive(Debug)]
pub(super) struct ContainerRoot {
    directory: OwnedFd,
    /// The process's working directory, to which relative paths refer.
    working: PathBuf,
    /// The user and group of the process, as the node sees them.
    user: (u32, u32),
}

/// A name in a directory of the container.
#[derive(Debug)]
pub(super) struct DirectoryEntry {
    directory: OwnedFd,
    name: OsString,
}

impl DirectoryEntry {
    /// The entry as the target of a copy.
    pub(super) fn target(&self) -> Target<'_> {
        Target { directory: self.directory.as_fd(), name: &self.name }
    }
}

impl ContainerRoot {
    /// Opens the root of the process `pid`, which should be in the container `id`.
    ///
    /// # Errors
    ///
    /// The process has ended, or the user may not access it.
    pub(super) fn open(pid: u32, id: &str) -> Result<Self, CopyError> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let failed = |source| CopyError::new("open the root of the container's process", process.as_os_str(), source);
        let directory = File::open(process.join("root")).map_err(failed)?;
        let working = std::fs::read_link(process.join("cwd")).map_err(failed)?;
        let status = std::fs::read_to_string(process.join("status")).map_err(failed)?;
        let user = user(&status).ok_or_else(|| failed(io::Error::other("its status names no user")))?;
        // Checked last, so that a PID that was reused in between is noticed.
        if !process::is_in_container(pid, &ContainerId::new(id)) {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has ended")));
        }
        Ok(Self { directory: directory.into(), working, user })
    }

    /// The owner of copies into the container. Root in a container keeps owners, as with `tar`; other users cannot.
    pub(super) fn owner(&self, keeps: bool) -> Owner {
        match self.user {
            (0, _) if keeps => Owner::Kept,
            (user, group) => Owner::User(user, group),
        }
    }

    /// Opens what is at `path`. Symlinks, the last component included, are resolved inside the container.
    ///
    /// # Errors
    ///
    /// `path` does not exist.
    pub(super) fn source(&self, path: &Path) -> Result<Source, CopyError> {
        let opened = self.open_at(&self.working.join(path), OFlags::PATH)?;
        Ok(Source { opened, name: path.as_os_str().to_owned() })
    }

    /// Where to copy something called `name`: into the directory at `path`, or else to that path.
    ///
    /// # Errors
    ///
    /// The parent directory does not exist.
    pub(super) fn place(&self, path: &Path, name: Option<&OsStr>) -> Result<DirectoryEntry, CopyError> {
        let whole = self.working.join(path);
        let directory = |path: &Path| self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY);
        match (directory(&whole), whole.parent(), whole.file_name()) {
            (Ok(directory), ..) => Ok(DirectoryEntry { directory, name: name.unwrap_or(OsStr::new(".")).to_owned() }),
            (Err(_), Some(parent), Some(last)) => {
                Ok(DirectoryEntry { directory: directory(parent)?, name: last.to_owned() })
            }
            (Err(error), ..) => Err(error),
        }
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, CopyError> {
        let opened = confined::open(&self.directory, path, flags, Confinement::IN_ROOT);
        opened.map_err(|error| CopyError::new("open in the container:", path.as_os_str(), error.into()))
    }
}

/// The user and group that own a process's files, from `/proc/PID/status`. The owner of `/proc/PID` itself is root if
/// the process is not dumpable.
fn user(status: &str) -> Option<(u32, u32)> {
    let last =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().nth(3)?.parse().ok();
    Some((last("Uid:")?, last("Gid:")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_may_not_be_dumped_is_not_root_for_it() {
        let status = "Name:\ta\nUid:\t1000\t1001\t1002\t1003\nGid:\t7\t8\t9\t10\nGroups:\t\n";
        assert_eq!(user(status), Some((1003, 10)));
        assert_eq!(user("Name:\ta\nUid:\t1000\n"), None);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(user(&status), Some((rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())));
    }
}
