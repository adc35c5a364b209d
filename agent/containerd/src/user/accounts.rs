//! Reads `/etc/passwd` and `/etc/group` of an image that nobody has vouched for.
//!
//! The image's snapshot is mounted read-only in a mount namespace of a thread of its own, which ends with the thread:
//! nothing is left behind, whatever happens. The kernel resolves the two paths inside the image
//! (`RESOLVE_IN_ROOT`), so a link in it can only lead to something else in it.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

/// Largest account file read: some ten thousand users.
const MAX_FILE: u64 = 1 << 20;

/// The kernel takes mount options of less than a page.
const MAX_OPTIONS: usize = 4_095;

/// Where the snapshot is mounted in the thread's namespace. Every system has it, and the thread needs nothing there.
const MOUNT_POINT: &str = "/proc";

/// One mount of a snapshot, as containerd's `Snapshots.Prepare`, `View` and `Mounts` give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMount {
    /// `overlay` or `bind`.
    pub fs_type: String,
    /// The directory, for `bind`.
    pub source: String,
    /// Mount options: `lowerdir=…`, `upperdir=…`, `ro`, `rbind`…
    pub options: Vec<String>,
}

/// An image's account files; `None` for one that is not there.
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
/// When the snapshot cannot be mounted, or a file is there and cannot be read: it is no file, or is too large.
pub fn read_accounts(mounts: &[SnapshotMount]) -> io::Result<Accounts> {
    let layers = layers(mounts)?;
    // A new thread: the namespace must not be that of a thread that goes on to do something else.
    let reader = std::thread::Builder::new().name("accounts".to_owned()).spawn(move || read_in_namespace(&layers))?;
    reader.join().map_err(|_| io::Error::other("the thread reading the image's accounts panicked"))?
}

/// The snapshot's directories, topmost first. Only what can be read matters: an upper layer is one more layer here.
fn layers(mounts: &[SnapshotMount]) -> io::Result<Vec<PathBuf>> {
    let unsupported = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
    let [mount] = mounts else {
        return Err(unsupported(format!("a snapshot of {} mounts, not one", mounts.len())));
    };
    match mount.fs_type.as_str() {
        "bind" | "rbind" => Ok(vec![PathBuf::from(&mount.source)]),
        "overlay" => {
            let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
            let lower = option("lowerdir=").into_iter().flat_map(|directories| directories.split(':'));
            Ok(option("upperdir=").into_iter().chain(lower).map(PathBuf::from).collect())
        }
        other => Err(unsupported(format!("a snapshot mounted as {other}"))),
    }
}

fn read_in_namespace(layers: &[PathBuf]) -> io::Result<Accounts> {
    // SAFETY: only the mount namespace (and with it root and working directory) is unshared, not the table of file
    // descriptors, and this thread ends with this function.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)?;
    }
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    mount_layers(layers).map_err(|error| {
        let top = layers.first().map(|layer| layer.display().to_string()).unwrap_or_default();
        io::Error::new(error.kind(), format!("mount the image's {} layers, {top} on top: {error}", layers.len()))
    })?;
    let root = open(MOUNT_POINT, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Accounts { passwd: read_inside(&root, "etc/passwd")?, group: read_inside(&root, "etc/group")? })
}

fn mount_layers(layers: &[PathBuf]) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    if let [only] = layers {
        mount_bind(only, MOUNT_POINT)?;
        // Flags take hold of a bind mount in a second step. NODEV: opening a device can have effects.
        return Ok(mount_remount(MOUNT_POINT, MountFlags::BIND | flags, c"")?);
    }
    let (directory, options) = overlay_options(layers)?;
    rustix::process::chdir(&directory)?;
    Ok(mount("overlay", MOUNT_POINT, "overlay", flags, options.as_c_str())?)
}

/// Where to stand, and the overlay's options as seen from there: many layers only fit with relative paths.
fn overlay_options(layers: &[PathBuf]) -> io::Result<(PathBuf, CString)> {
    let mut base = layers.first().and_then(|layer| layer.parent()).unwrap_or(Path::new("/")).to_owned();
    while !layers.iter().all(|layer| layer.starts_with(&base)) && base.pop() {}
    let relative: Vec<String> =
        layers.iter().map(|layer| layer.strip_prefix(&base).unwrap_or(layer).to_string_lossy().into_owned()).collect();
    let options = format!("lowerdir={}", relative.join(":"));
    if options.len() > MAX_OPTIONS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} layers are too many", layers.len())));
    }
    Ok((base, CString::new(options)?))
}

/// A file of the image, with the image as root for every link on the way; `None` when there is none.
fn read_inside(root: &OwnedFd, path: &str) -> io::Result<Option<String>> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    // NONBLOCK: a pipe in the file's place must not hold the thread.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match openat2(root, path, flags, Mode::empty(), resolve) {
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

/// Account files by chain id: they never change, and most images of a node are started again and again.
///
/// Bounded by bytes; the oldest entry makes room.
#[derive(Debug, Default)]
pub struct AccountsCache {
    entries: Mutex<Vec<(Arc<str>, Arc<Accounts>)>>,
}

impl AccountsCache {
    /// Most bytes kept, in all.
    const MAX_BYTES: usize = 256 << 10;

    /// What is known of this chain of layers.
    pub fn get(&self, chain_id: &str) -> Option<Arc<Accounts>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|(known, _)| known.as_ref() == chain_id).map(|(_, accounts)| accounts.clone())
    }

    /// Keeps what was read, unless it is larger than the cache.
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

/// Bytes an entry takes, its own bookkeeping included.
fn weight(accounts: &Accounts) -> usize {
    let text = |file: &Option<String>| file.as_ref().map_or(0, String::len);
    256 + text(&accounts.passwd) + text(&accounts.group)
}

#[cfg(test)]
mod tests;
