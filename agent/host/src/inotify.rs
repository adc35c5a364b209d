//! One inotify instance, with watches by descriptor. Its events are always read completely.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The size of a read in bytes: some 200 events with short names.
const BUFFER: usize = 8 << 10;
/// The most events that are read before other tasks run, because an endless writer must not block them.
const MAX_EVENTS: usize = 4_096;

/// A watch descriptor. The kernel never reuses one within an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wd(i32);

impl Wd {
    /// The descriptor of no watch.
    pub const NONE: Self = Self(-1);
}

/// One event as the kernel sent it.
#[derive(Debug, Clone)]
pub struct Change {
    /// The watch that reported it.
    pub wd: Wd,
    /// What happened.
    pub flags: ReadFlags,
    /// The entry of the directory; `None` for the directory itself.
    pub name: Option<OsString>,
}

/// Registers an owned descriptor with the reactor.
#[allow(unsafe_code)]
pub fn register<T: OwnsDescriptor>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the types below own their descriptor or a share of it, never exchange it, and close it only when dropped.
    unsafe { AsyncFd::register_with_interest(owner, interest) }.map_err(io::Error::from)
}

/// Types whose single descriptor stays open and unchanged for their whole life.
pub trait OwnsDescriptor: AsRawFd {}
impl OwnsDescriptor for OwnedFd {}
impl OwnsDescriptor for File {}
impl OwnsDescriptor for Arc<OwnedFd> {}

/// Adds watches to a [`Queue`] from any thread, because the kernel resolves a path, which may block.
#[derive(Debug)]
pub struct WatchAdder(OwnedFd);

impl WatchAdder {
    /// Watches the directory `path` for `mask` in addition to its current mask. Blocks.
    ///
    /// # Errors
    ///
    /// The path is not a directory, or no watch is left (`ENOSPC`).
    pub fn add(&self, path: &Path, mask: WatchFlags) -> io::Result<Wd> {
        let mask = mask | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR;
        Ok(Wd(inotify::add_watch(&self.0, path, mask).map_err(with_limit)?))
    }
}

/// The kernel's error, with a better message where its own would mislead.
fn with_limit(error: Errno) -> io::Error {
    let words = match error {
        Errno::NOSPC => "no inotify watch is left; raise fs.inotify.max_user_watches",
        Errno::MFILE => "no inotify instance is left; raise fs.inotify.max_user_instances",
        error => return error.into(),
    };
    io::Error::new(io::Error::from(error).kind(), words)
}

/// An inotify instance and the paths of its watches.
#[derive(Debug)]
pub struct Queue {
    fd: AsyncFd<OwnedFd>,
    paths: HashMap<Wd, PathBuf>,
}

impl Queue {
    /// An instance without watches.
    ///
    /// # Errors
    /// The kernel refuses an instance (`EMFILE`: `fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(with_limit)?;
        Ok(Self { fd: register(fd, Interest::READABLE)?, paths: HashMap::new() })
    }

    /// Creates a handle that adds watches to this instance.
    ///
    /// # Errors
    ///
    /// No file descriptor is left.
    pub fn adder(&self) -> io::Result<WatchAdder> {
        Ok(WatchAdder(self.fd.get_ref().try_clone()?))
    }

    /// Stores the path of a watch from [`WatchAdder::add`].
    pub fn add_path(&mut self, wd: Wd, path: PathBuf) {
        self.paths.insert(wd, path);
    }

    /// Removes a watch. A watch that the kernel has already removed is not an error.
    pub fn remove(&mut self, wd: Wd) {
        self.paths.remove(&wd);
        let _ = inotify::remove_watch(self.fd.get_ref(), wd.0);
    }

    /// The path of a watch.
    pub fn path(&self, wd: Wd) -> Option<&Path> {
        self.paths.get(&wd).map(PathBuf::as_path)
    }

    /// Waits for events and reads them all, up to a limit; also returns whether these were all. Cancel safe: nothing
    /// is read before the wait ends.
    pub async fn drain(&self) -> io::Result<(Vec<Change>, bool)> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER];
            let (mut changes, mut all) = (Vec::new(), false);
            let mut reader = Reader::new(self.fd.get_ref(), &mut buffer);
            // Buffered events are no longer in the kernel's queue, and would be lost if they were not read here.
            while changes.len() < MAX_EVENTS || !reader.is_buffer_empty() {
                match reader.next() {
                    Ok(event) => changes.push(Change {
                        wd: Wd(event.wd()),
                        flags: event.events(),
                        name: event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    }),
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        all = true;
                        break;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !changes.is_empty() {
                return Ok((changes, all));
            }
        }
    }
}
