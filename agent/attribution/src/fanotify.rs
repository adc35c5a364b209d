//! A fanotify group with marks on directories, which tells which process changed which name.
//!
//! `nix` creates the group and the marks, but does not parse events with names and pidfds, so this module does.
//! Events name directories by file handle. The kernel lists each mark's handle in the fdinfo of the group, so no
//! further call is needed.

mod event;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, InitFlags, MarkFlags, MaskFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{directory_id, process_actor};
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchObserver;
use limpet_model::directory_id::DirectoryId;

use event::{Event, Events};

/// Bytes read at once: about 50 events, each of which opens a pidfd.
const BUFFER: usize = 4 << 10;
/// How many buffers are read before other tasks run: as many events as the kernel queues by default.
const MAX_READS: usize = 320;
/// `linux/fanotify.h`: events have the directory and the name (Linux 5.9).
const REPORT_DFID_NAME: u32 = 0x0000_0c00;
/// `linux/fanotify.h`: events have a pidfd of the process (Linux 5.15).
const REPORT_PIDFD: u32 = 0x0000_0080;
/// The events of each directory, the same as those requested from inotify, so that each of its events has an actor.
const MASK: MaskFlags = MaskFlags::FAN_CLOSE_WRITE
    .union(MaskFlags::FAN_CREATE)
    .union(MaskFlags::FAN_DELETE)
    .union(MaskFlags::FAN_MOVED_FROM)
    .union(MaskFlags::FAN_MOVED_TO)
    .union(MaskFlags::FAN_ATTRIB)
    .union(MaskFlags::FAN_EVENT_ON_CHILD);

/// A change of a name, and who made it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) directory: DirectoryId,
    pub(super) name: OsString,
    /// Whether only mode, owner or times changed, so that the last writer of the content is unchanged.
    pub(super) attributes_only: bool,
    pub(super) actor: Arc<Actor>,
}

/// The events that were queued.
#[derive(Debug, Default)]
pub(super) struct Drained {
    pub(super) seen: Vec<Seen>,
    /// Whether the kernel's queue overflowed, so that some were lost.
    pub(super) overflow: bool,
}

type Group = nix::sys::fanotify::Fanotify;

/// A file handle, by which events name a directory: its type and bytes.
pub(super) type Handle = (i32, Vec<u8>);

/// The result of setting one mark.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) path: PathBuf,
    pub(super) id: DirectoryId,
    pub(super) handle: io::Result<Handle>,
}

#[derive(Debug)]
pub(super) struct Fanotify {
    group: AsyncFd<Arc<Group>>,
    marks: HashMap<DirectoryId, Handle>,
    identified: Identified,
}

/// The process identified last, with the pidfd that proves it: most events of a burst come from one process.
#[derive(Debug, Default)]
struct Identified {
    last: Option<(u32, OwnedFd, Arc<Actor>)>,
}

impl Fanotify {
    /// A group without marks.
    ///
    /// # Errors
    /// The kernel is too old or built without fanotify, or the agent lacks `CAP_SYS_ADMIN`.
    pub(super) fn new() -> io::Result<Self> {
        // Without the capability the kernel refuses unlimited marks, and omits the process id without an error.
        let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | InitFlags::FAN_UNLIMITED_MARKS;
        let with = |report: u32| {
            Group::init(flags | InitFlags::from_bits_retain(report), EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
        };
        let group = match with(REPORT_DFID_NAME | REPORT_PIDFD) {
            // Before Linux 5.15 there is only the pid, which proves nothing once the process may have exited.
            Err(Errno::EINVAL) => with(REPORT_DFID_NAME),
            created => created,
        };
        let group = group.map_err(|errno| match errno {
            Errno::EPERM => io::Error::new(io::ErrorKind::PermissionDenied, "not permitted: needs CAP_SYS_ADMIN"),
            Errno::ENOSYS => io::Error::new(io::ErrorKind::Unsupported, "this kernel has no fanotify"),
            Errno::EINVAL => io::Error::new(io::ErrorKind::Unsupported, "this kernel's fanotify reports no names"),
            errno => errno.into(),
        })?;
        // SAFETY: a fanotify group owns its descriptor, never exchanges it, and closes it only when dropped.
        #[allow(unsafe_code)]
        let group = unsafe { AsyncFd::register_with_interest(Arc::new(group), Interest::READABLE) };
        Ok(Self { group: group.map_err(io::Error::from)?, marks: HashMap::new(), identified: Identified::default() })
    }

    /// Marks the directory at `path`, which is `id`, or renews its mark. Blocks.
    ///
    /// # Errors
    ///
    /// Its file system has no file handles, or the path now leads elsewhere.
    pub(super) fn mark(&mut self, path: &Path, id: DirectoryId) -> io::Result<()> {
        let handle = mark(self.group.get_ref(), path, id, self.marks.get(&id))?;
        self.marks.insert(id, handle);
        Ok(())
    }

    /// A function that marks these directories, each as [`Self::mark`] does. It must run on a thread that may block,
    /// because it queries file systems. [`Self::marked`] takes the result.
    pub(super) fn marking(
        &self,
        directories: Vec<(PathBuf, DirectoryId)>,
    ) -> impl FnOnce() -> Vec<Marked> + Send + use<> {
        let (group, known) = (Arc::clone(self.group.get_ref()), self.marks.clone());
        move || {
            let mark_directory = |(path, id): (PathBuf, DirectoryId)| {
                let handle = mark(&group, &path, id, known.get(&id));
                Marked { path, id, handle }
            };
            directories.into_iter().map(mark_directory).collect()
        }
    }

    /// Records the handle by which the kernel names the directory.
    pub(super) fn marked(&mut self, id: DirectoryId, handle: Handle) {
        self.marks.insert(id, handle);
    }

    /// Removes the marks of all other directories. A removed directory has already lost its mark.
    pub(super) fn keep_only(&mut self, wanted: impl Fn(&DirectoryId) -> bool) {
        if self.marks.keys().all(&wanted) {
            return;
        }
        // A mark can be removed only by path, which the directory may have lost. So all are removed, and the caller
        // adds those that are wanted.
        let _ =
            self.group.get_ref().mark(MarkFlags::FAN_MARK_FLUSH, MaskFlags::empty(), rustix::fs::CWD, None::<&Path>);
        self.marks.clear();
    }

    /// Whether the directory was marked.
    pub(super) fn has_mark(&self, id: &DirectoryId) -> bool {
        self.marks.contains_key(id)
    }

    /// Whether the kernel still lists the directory's mark.
    pub(super) fn is_marked(&self, id: &DirectoryId) -> bool {
        let listed = listed(self.group.get_ref()).unwrap_or_default();
        self.marks.get(id).is_some_and(|handle| listed.contains(handle))
    }

    /// Waits for events and reads them. Cancel safe.
    pub(super) async fn read_events(&mut self, observer: &dyn WatchObserver) -> io::Result<Drained> {
        loop {
            let mut ready = self.group.readable().await?;
            let (drained, emptied) = drain(self.group.get_ref(), &self.marks, &mut self.identified, observer)?;
            if emptied {
                ready.clear_ready();
            }
            if drained.overflow || !drained.seen.is_empty() {
                return Ok(drained);
            }
        }
    }

    /// Reads the pending events.
    pub(super) fn read_pending(&mut self, observer: &dyn WatchObserver) -> io::Result<Drained> {
        drain(self.group.get_ref(), &self.marks, &mut self.identified, observer).map(|(drained, _)| drained)
    }

    /// Behaves as if the kernel had removed every mark.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn lose_marks(&self) {
        self.group
            .get_ref()
            .mark(MarkFlags::FAN_MARK_FLUSH, MaskFlags::empty(), rustix::fs::CWD, None::<&Path>)
            .unwrap_or_default();
    }
}

/// Marks one directory and returns the handle by which events name it. `known` is the handle it had.
fn mark(group: &Group, path: &Path, id: DirectoryId, known: Option<&Handle>) -> io::Result<Handle> {
    let before = listed(group)?;
    let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_ONLYDIR;
    group.mark(flags, MASK, rustix::fs::CWD, Some(path)).map_err(|errno| match errno {
        Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EXDEV => {
            io::Error::new(io::ErrorKind::Unsupported, "its file system has no file handles")
        }
        errno => errno.into(),
    })?;
    if directory_id(path)? != id {
        return Err(io::ErrorKind::NotFound.into());
    }
    let fresh = listed(group)?.into_iter().find(|handle| !before.contains(handle));
    let unnamed = || io::Error::new(io::ErrorKind::Unsupported, "the kernel names no file handle for it");
    fresh.or_else(|| known.cloned()).ok_or_else(unnamed)
}

/// The directories that the kernel lists as marked.
fn listed(group: &Group) -> io::Result<Vec<Handle>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", group.as_raw_fd()))?;
    Ok(info.lines().filter_map(listed_handle).collect())
}

/// Reads queued events. Also returns whether the queue is empty now.
fn drain(
    group: &Group,
    marks: &HashMap<DirectoryId, Handle>,
    identified: &mut Identified,
    observer: &dyn WatchObserver,
) -> io::Result<(Drained, bool)> {
    let mut drained = Drained::default();
    let mut buffer = [0_u8; BUFFER];
    for _ in 0..MAX_READS {
        let length = match rustix::io::read(group.as_fd(), &mut buffer) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok((drained, true)),
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        for event in Events(&buffer[..length]) {
            drained.overflow |= event.mask.contains(MaskFlags::FAN_Q_OVERFLOW);
            let actor = identified.actor(&event, observer);
            let Some((handle, name)) = event.what else { continue };
            let mut alike = marks.iter().filter(|(_, marked)| **marked == handle).map(|(id, _)| *id);
            // Two file systems may use the same handle, which then names no single directory.
            if let (Some(directory), None) = (alike.next(), alike.next()) {
                let attributes_only = event.mask.difference(MaskFlags::FAN_EVENT_ON_CHILD) == MaskFlags::FAN_ATTRIB;
                drained.seen.push(Seen { directory, name, attributes_only, actor });
            }
        }
    }
    Ok((drained, false))
}

impl Identified {
    fn actor(&mut self, event: &Event, observer: &dyn WatchObserver) -> Arc<Actor> {
        let Some(pidfd) = &event.pidfd else {
            // The process has exited, or the kernel reports no pidfd: the pid may belong to another process by now.
            return Arc::new(Actor { pid: event.pid, ..Actor::default() });
        };
        let Some(pid) = event.pid else { return Arc::default() };
        if let Some((known, its, actor)) = &self.last
            && *known == pid
            && process_actor::number(its.as_fd()) == Some(pid)
        {
            return Arc::clone(actor);
        }
        let actor = Arc::new(process_actor::actor(pid, pidfd.as_fd(), observer));
        if let Ok(pidfd) = pidfd.try_clone() {
            self.last = Some((pid, pidfd, Arc::clone(&actor)));
        }
        actor
    }
}

/// Parses `fanotify ino:… sdev:… … fhandle-bytes:8 fhandle-type:1 f_handle:9a4f…`; numbers are hexadecimal.
fn listed_handle(line: &str) -> Option<Handle> {
    let field = |name: &str| line.split_whitespace().find_map(|field| field.strip_prefix(name));
    let hex = field("f_handle:").filter(|_| line.starts_with("fanotify ino:"))?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = hex.chunks(2).map(byte).collect::<Option<Vec<u8>>>()?;
    let length = usize::from_str_radix(field("fhandle-bytes:")?, 16).ok()?;
    let kind = i32::from_str_radix(field("fhandle-type:")?, 16).ok()?;
    (bytes.len() == length).then_some((kind, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_handles_are_parsed_from_fdinfo() {
        let line = "fanotify ino:4f9a sdev:fe00001 mflags:200 mask:8000048 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:9a4f000011223344";
        assert_eq!(listed_handle(line), Some((1, vec![0x9a, 0x4f, 0, 0, 0x11, 0x22, 0x33, 0x44])));
        for odd in
            ["pos:\t0", "fanotify flags:c03 event-flags:0", "fanotify ino:1 f_handle:zz fhandle-bytes:1 fhandle-type:1"]
        {
            assert_eq!(listed_handle(odd), None, "{odd}");
        }
    }
}
