//! One inotify instance: watches by descriptor, events drained whole.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes read at once: some 200 events with short names.
const BUFFER: usize = 8 << 10;
/// Events taken before others have their turn: whoever writes without end is not waited for.
const MOST: usize = 4_096;

/// A watch descriptor. The kernel does not use a number twice in one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wd(i32);

impl Wd {
    /// No watch has this descriptor.
    pub const DEAD: Self = Self(-1);
}

/// One event as the kernel sent it.
#[derive(Debug, Clone)]
pub struct Change {
    /// The watch it came by.
    pub wd: Wd,
    /// What happened.
    pub flags: ReadFlags,
    /// To which entry of the directory; `None`: to the directory itself.
    pub name: Option<OsString>,
}

/// Hands an owned descriptor to the reactor.
#[allow(unsafe_code)]
pub fn register<T: OwnsDescriptor>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: both types below own their descriptor, never exchange it, and close it only when dropped.
    unsafe { AsyncFd::register_with_interest(owner, interest) }.map_err(io::Error::from)
}

/// Types whose one descriptor stays open and the same for as long as they live.
pub trait OwnsDescriptor: AsRawFd {}
impl OwnsDescriptor for OwnedFd {}
impl OwnsDescriptor for File {}

/// The kernel's error, in words where its own would mislead.
fn with_limit(error: Errno) -> io::Error {
    let words = match error {
        Errno::NOSPC => "no inotify watch is left; raise fs.inotify.max_user_watches",
        Errno::MFILE => "no inotify instance is left; raise fs.inotify.max_user_instances",
        error => return error.into(),
    };
    io::Error::new(io::Error::from(error).kind(), words)
}

/// The instance and the paths its watches were put on.
#[derive(Debug)]
pub struct Queue {
    fd: AsyncFd<OwnedFd>,
    paths: HashMap<Wd, PathBuf>,
}

impl Queue {
    /// An instance without watches.
    ///
    /// # Errors
    /// The kernel gives no instance (`EMFILE`: `fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(with_limit)?;
        Ok(Self { fd: register(fd, Interest::READABLE)?, paths: HashMap::new() })
    }

    /// Watches the directory `path` for `mask` besides what it is watched for already.
    pub fn add(&mut self, path: &Path, mask: WatchFlags) -> io::Result<Wd> {
        let mask = mask | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR;
        let wd = Wd(inotify::add_watch(self.fd.get_ref(), path, mask).map_err(with_limit)?);
        self.paths.insert(wd, path.to_owned());
        Ok(wd)
    }

    /// Ends a watch; one the kernel has ended already is no error.
    pub fn remove(&mut self, wd: Wd) {
        self.paths.remove(&wd);
        let _ = inotify::remove_watch(self.fd.get_ref(), wd.0);
    }

    /// The path a watch was put on.
    pub fn path(&self, wd: Wd) -> Option<&Path> {
        self.paths.get(&wd).map(PathBuf::as_path)
    }

    /// Waits for events and takes all there are, up to a bound; and whether these were all. Cancel safe: nothing is taken
    /// before the wait is over.
    pub async fn drain(&self) -> io::Result<(Vec<Change>, bool)> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER];
            let (mut changes, mut all) = (Vec::new(), false);
            let mut reader = Reader::new(self.fd.get_ref(), &mut buffer);
            // What the buffer holds was taken from the kernel, and is lost if it is not looked at.
            while changes.len() < MOST || !reader.is_buffer_empty() {
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
