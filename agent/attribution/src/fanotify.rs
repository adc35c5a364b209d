//! One fanotify group with marks on directories: which process changed which name.
//!
//! `nix` creates the group and the marks; it does not parse events with names and pidfds, so this module does. Events name
//! directories by file handle; the kernel lists each mark's handle in the fdinfo of the group, so no further call is needed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, InitFlags, MarkFlags, MaskFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::directory_id;
use crate::process_actor;
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchObserver;
use limpet_model::directory_id::DirectoryId;

/// Bytes read at once: some 50 events, each of which opens a pidfd.
const BUFFER: usize = 4 << 10;
/// Buffers read before other tasks have their turn: as many events as the kernel queues by default.
const MAX_READS: usize = 320;
/// `linux/fanotify.h`: report the directory and the name; Linux 5.9.
const REPORT_DFID_NAME: u32 = 0x0000_0c00;
/// Report a pidfd of the process; Linux 5.15.
const REPORT_PIDFD: u32 = 0x0000_0080;
const INFO_DFID_NAME: u8 = 2;
const INFO_PIDFD: u8 = 4;
/// The events of each directory: those asked of inotify, so that each of its events has an actor.
const MASK: MaskFlags = MaskFlags::FAN_CLOSE_WRITE
    .union(MaskFlags::FAN_CREATE)
    .union(MaskFlags::FAN_DELETE)
    .union(MaskFlags::FAN_MOVED_FROM)
    .union(MaskFlags::FAN_MOVED_TO)
    .union(MaskFlags::FAN_ATTRIB)
    .union(MaskFlags::FAN_EVENT_ON_CHILD);

/// A change of a name.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) directory: DirectoryId,
    pub(super) name: OsString,
    /// Only mode, owner or times: the content is still by its last writer.
    pub(super) attributes_only: bool,
    pub(super) actor: Arc<Actor>,
}

/// The events that were queued.
#[derive(Debug, Default)]
pub(super) struct Drained {
    pub(super) seen: Vec<Seen>,
    /// The kernel's queue overflowed: some were lost.
    pub(super) overflow: bool,
}

type Group = nix::sys::fanotify::Fanotify;

/// A file handle, by which events name a directory: its type and bytes.
type Handle = (i32, Vec<u8>);

/// A fanotify group.
#[derive(Debug)]
pub(super) struct Fanotify {
    group: AsyncFd<Group>,
    marks: HashMap<DirectoryId, Handle>,
    identified: Identified,
}

/// The process identified last, with the pidfd that proves it: most events of a burst are of one process.
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
        // Without the capability, unlimited marks are refused, and the process id is omitted without an error.
        let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | InitFlags::FAN_UNLIMITED_MARKS;
        let with = |report: u32| {
            Group::init(flags | InitFlags::from_bits_retain(report), EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
        };
        let group = match with(REPORT_DFID_NAME | REPORT_PIDFD) {
            // Before 5.15: the pid alone, which proves nothing once the process may have exited.
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
        let group = unsafe { AsyncFd::register_with_interest(group, Interest::READABLE) };
        Ok(Self { group: group.map_err(io::Error::from)?, marks: HashMap::new(), identified: Identified::default() })
    }

    /// Marks the directory at `path`, which is `id`; an existing mark is renewed.
    ///
    /// # Errors
    /// Its file system has no file handles, or the path leads elsewhere by now.
    pub(super) fn mark(&mut self, path: &Path, id: DirectoryId) -> io::Result<()> {
        let before = self.listed()?;
        let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_ONLYDIR;
        self.group.get_ref().mark(flags, MASK, rustix::fs::CWD, Some(path)).map_err(|errno| match errno {
            Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EXDEV => {
                io::Error::new(io::ErrorKind::Unsupported, "its file system has no file handles")
            }
            errno => errno.into(),
        })?;
        if directory_id(path)? != id {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut fresh = self.listed()?.into_iter().filter(|handle| !before.contains(handle));
        if let Some(handle) = fresh.next() {
            self.marks.insert(id, handle);
        }
        match self.marks.contains_key(&id) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel names no file handle for it")),
        }
    }

    /// Removes the marks of all directories but these. The mark of a removed directory is gone already.
    pub(super) fn keep_only(&mut self, wanted: impl Fn(&DirectoryId) -> bool) {
        if self.marks.keys().all(&wanted) {
            return;
        }
        // A mark is removed by path, and the directory may have none any more: remove all, the caller adds the wanted.
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
        let listed = self.listed().unwrap_or_default();
        self.marks.get(id).is_some_and(|handle| listed.contains(handle))
    }

    /// The directories the kernel has marks on.
    fn listed(&self) -> io::Result<Vec<Handle>> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.group.as_raw_fd()))?;
        Ok(info.lines().filter_map(listed_handle).collect())
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

    /// As if the kernel had removed every mark.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn lose_marks(&self) {
        self.group
            .get_ref()
            .mark(MarkFlags::FAN_MARK_FLUSH, MaskFlags::empty(), rustix::fs::CWD, None::<&Path>)
            .unwrap_or_default();
    }
}

/// Reads queued events; also returns whether the queue is empty now.
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
            // Two file systems may use the same handle: then the directory is ambiguous.
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
            // The process has exited, or the kernel reports no pidfd: the pid may be another process's by now.
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

/// One event.
#[derive(Debug)]
struct Event {
    mask: MaskFlags,
    /// `None`: the process is in another pid namespace.
    pid: Option<u32>,
    pidfd: Option<OwnedFd>,
    /// The directory and the name in it.
    what: Option<(Handle, OsString)>,
}

/// The events in a buffer. Each is yielded once, since it owns its pidfd.
#[derive(Debug)]
struct Events<'a>(&'a [u8]);

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        // struct fanotify_event_metadata: length, version, reserved, length of this head, mask, descriptor, process.
        let head = self.0.get(..24)?;
        let length = usize::try_from(number(head, 0)?).ok()?;
        let head_length = usize::from(u16::from_ne_bytes(head.get(6..8)?.try_into().ok()?));
        let mask = u64::from_ne_bytes(head.get(8..16)?.try_into().ok()?);
        let pid = number(head, 20).filter(|pid| *pid > 0 && i32::try_from(*pid).is_ok());
        let mut records = self.0.get(head_length..length)?;
        self.0 = self.0.get(length..)?;
        let mut event = Event { mask: MaskFlags::from_bits_retain(mask), pid, pidfd: None, what: None };
        // struct fanotify_event_info_header: kind, padding, length with the head.
        while let [kind, _, low, high, ..] = *records {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((record, rest)) = records.split_at_checked(length) else { break };
            match kind {
                INFO_DFID_NAME => event.what = directory_and_name(record),
                INFO_PIDFD => event.pidfd = number(record, 4).and_then(owned),
                _ => {}
            }
            if rest.len() == records.len() {
                break;
            }
            records = rest;
        }
        Some(event)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Head, file system, then struct file_handle: length, type, bytes; then the name and its end.
fn directory_and_name(record: &[u8]) -> Option<(Handle, OsString)> {
    let length = usize::try_from(number(record, 12)?).ok()?;
    let kind = i32::from_ne_bytes(record.get(16..20)?.try_into().ok()?);
    let (handle, name) = record.get(20..)?.split_at_checked(length)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(((kind, handle.to_vec()), OsStr::from_bytes(name).to_owned()))
}

/// The event's pidfd. Negative: the process had exited, or no descriptor was free.
fn owned(descriptor: u32) -> Option<OwnedFd> {
    let descriptor = i32::try_from(descriptor).ok()?;
    // SAFETY: the kernel has just opened it for this event, it has no other owner, and each event is yielded once.
    #[allow(unsafe_code)]
    unsafe {
        Some(OwnedFd::from_raw_fd(descriptor))
    }
}

/// `fanotify ino:… sdev:… … fhandle-bytes:8 fhandle-type:1 f_handle:9a4f…`, hexadecimal.
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut record = vec![kind, 0];
        record.extend_from_slice(&u16::try_from(4 + body.len()).unwrap().to_ne_bytes());
        record.extend_from_slice(body);
        record
    }

    fn event(mask: MaskFlags, pid: i32, records: &[u8]) -> Vec<u8> {
        let mut event = u32::try_from(24 + records.len()).unwrap().to_ne_bytes().to_vec();
        event.extend_from_slice(&[3, 0]);
        event.extend_from_slice(&24_u16.to_ne_bytes());
        event.extend_from_slice(&mask.bits().to_ne_bytes());
        event.extend_from_slice(&(-1_i32).to_ne_bytes());
        event.extend_from_slice(&pid.to_ne_bytes());
        event.extend_from_slice(records);
        event
    }

    fn named(handle: &[u8], name: &str) -> Vec<u8> {
        let mut body = [0; 8].to_vec();
        body.extend_from_slice(&u32::try_from(handle.len()).unwrap().to_ne_bytes());
        body.extend_from_slice(&1_i32.to_ne_bytes());
        body.extend_from_slice(handle);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&[0, 0, 0]);
        record(INFO_DFID_NAME, &body)
    }

    #[test]
    fn events_are_parsed_and_truncated_or_malformed_ones_stop_the_iterator() {
        let gone = record(INFO_PIDFD, &(-1_i32).to_ne_bytes());
        let written = event(MaskFlags::FAN_CLOSE_WRITE, 7, &[named(b"12345678", "a.yaml"), gone.clone()].concat());
        let overflow = event(MaskFlags::FAN_Q_OVERFLOW, 0, &[]);
        let all = [written.clone(), overflow].concat();
        let read: Vec<Event> = Events(&all).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].what, Some(((1, b"12345678".to_vec()), OsString::from("a.yaml"))));
        assert!(read[0].pid == Some(7) && read[0].pidfd.is_none());
        assert!(read[1].mask.contains(MaskFlags::FAN_Q_OVERFLOW) && read[1].pid.is_none());
        for cut in 0..written.len() {
            assert!(Events(&written[..cut]).next().is_none(), "cut at {cut}");
        }
        // A record whose length is zero, and one that is longer than the buffer.
        for records in [vec![INFO_DFID_NAME, 0, 0, 0], vec![INFO_DFID_NAME, 0, 200, 0]] {
            let odd = event(MaskFlags::FAN_CREATE, 7, &records);
            assert!(Events(&odd).next().unwrap().what.is_none());
        }
        assert!(Events(&event(MaskFlags::FAN_CREATE, 7, &named(b"", "a"))).next().unwrap().what.is_some());
    }

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
