//! The events of a fanotify group, as `fanotify(7)` lays them out: `nix` parses neither names nor pidfds. Part of [`super`].

use std::ffi::{OsStr, OsString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::sys::fanotify::MaskFlags;

use super::Handle;

const INFO_DFID_NAME: u8 = 2;
const INFO_PIDFD: u8 = 4;

#[derive(Debug)]
pub(super) struct Event {
    pub(super) mask: MaskFlags,
    /// `None` if the process is in another pid namespace.
    pub(super) pid: Option<u32>,
    pub(super) pidfd: Option<OwnedFd>,
    /// The directory and the name in it.
    pub(super) what: Option<(Handle, OsString)>,
}

/// The events in a buffer. Each is yielded only once, because it owns its pidfd.
#[derive(Debug)]
pub(super) struct Events<'a>(pub(super) &'a [u8]);

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

/// Parses a record: its head, the file system, a struct file_handle (length, type, bytes), then the name and its end.
fn directory_and_name(record: &[u8]) -> Option<(Handle, OsString)> {
    let length = usize::try_from(number(record, 12)?).ok()?;
    let kind = i32::from_ne_bytes(record.get(16..20)?.try_into().ok()?);
    let (handle, name) = record.get(20..)?.split_at_checked(length)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(((kind, handle.to_vec()), OsStr::from_bytes(name).to_owned()))
}

/// The event's pidfd. A negative one means that the process had exited, or that no descriptor was free.
fn owned(descriptor: u32) -> Option<OwnedFd> {
    let descriptor = i32::try_from(descriptor).ok()?;
    // SAFETY: the kernel has just opened it for this event. It has no other owner, because each event is yielded only
    // once.
    #[allow(unsafe_code)]
    unsafe {
        Some(OwnedFd::from_raw_fd(descriptor))
    }
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
}
