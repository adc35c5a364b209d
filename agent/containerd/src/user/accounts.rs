//! Reads `/etc/passwd` and `/etc/group` of an untrusted image. The paths are resolved inside the image, so a symlink
//! in it cannot lead out.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use limpet_host::confined::{self, Confinement};
use rustix::fs::{FileType, OFlags, fstat};

use crate::snapshot_mount::SnapshotMount;
use crate::snapshot_mount::private::with_mounted;

/// The largest account file in bytes: some ten thousand users.
const MAX_FILE: u64 = 1 << 20;

/// An image's account files; `None` for a missing one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// `/etc/passwd`.
    pub passwd: Option<String>,
    /// `/etc/group`.
    pub group: Option<String>,
}

/// Reads the account files of a snapshot. Blocks; needs `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// The snapshot cannot be mounted, or an existing file cannot be read because it is not a regular file or too large.
pub fn read_accounts(mounts: &[SnapshotMount]) -> io::Result<Accounts> {
    with_mounted(mounts, "accounts", |root| {
        Ok(Accounts { passwd: read_inside(&root, "etc/passwd")?, group: read_inside(&root, "etc/group")? })
    })
}

/// Reads a file of the image, with the image as root for every symlink; `None` if it is missing.
fn read_inside(root: &OwnedFd, path: &str) -> io::Result<Option<String>> {
    // NONBLOCK: a FIFO instead of the file must not block the thread.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match confined::open(root, path, flags, Confinement::IN_ROOT.without_mounts()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(of_path(path, error.into())),
    };
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(of_path(path, io::Error::new(io::ErrorKind::InvalidData, "not a regular file")));
    }
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| of_path(path, error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(of_path(path, io::Error::new(io::ErrorKind::InvalidData, "larger than 1 MiB")));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn of_path(path: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("/{path} of the image: {error}"))
}

/// Account files by chain id. They never change, and most images of a node are started repeatedly.
///
/// Bounded by bytes; the oldest entry is evicted.
#[derive(Debug, Default)]
pub struct AccountsCache {
    entries: Mutex<Vec<(Arc<str>, Arc<Accounts>)>>,
}

impl AccountsCache {
    /// The limit of all entries in bytes.
    const MAX_BYTES: usize = 256 << 10;

    /// The cached files of this chain id.
    pub fn get(&self, chain_id: &str) -> Option<Arc<Accounts>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|(known, _)| known.as_ref() == chain_id).map(|(_, accounts)| accounts.clone())
    }

    /// Caches account files, unless they are larger than the cache.
    pub fn put(&self, chain_id: Arc<str>, accounts: Arc<Accounts>) {
        if weight(&accounts) > Self::MAX_BYTES {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|(known, _)| *known != chain_id);
        entries.push((chain_id, accounts));
        let mut bytes: usize = entries.iter().map(|(_, accounts)| weight(accounts)).sum();
        let mut surplus = 0;
        while bytes > Self::MAX_BYTES {
            bytes -= weight(&entries[surplus].1);
            surplus += 1;
        }
        entries.drain(..surplus);
    }
}

/// The bytes of an entry, its own overhead included.
fn weight(accounts: &Accounts) -> usize {
    let text = |file: &Option<String>| file.as_ref().map_or(0, String::len);
    256 + text(&accounts.passwd) + text(&accounts.group)
}

#[cfg(test)]
mod tests;
