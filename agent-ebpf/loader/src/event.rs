//! Decodes the records that the BPF programs report into [`Event`]s.

use limpet_events::{
    ActorRecord, ChangeRecord, EventKind, FileRecord, NAME_LENGTH, Operation as Code, PART_LENGTH, PARTS, SignalRecord,
};

use crate::InodeId;

/// The process that made a change or sent a signal, as the kernel knew it at the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The process, in the initial namespace.
    pub pid: u32,
    /// Its parent, when known.
    pub parent: Option<u32>,
    /// Its real user.
    pub uid: u32,
    /// Its name: 15 bytes at most.
    pub command: String,
    /// Its cgroup's id in the v2 hierarchy.
    pub cgroup: u64,
}

/// A change of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A file was created.
    Create,
    /// A file opened for writing was closed.
    Written,
    /// A name was moved away.
    MovedFrom,
    /// A name was moved here.
    MovedTo,
    /// A name was removed.
    Unlink,
    /// A symlink was made.
    Symlink,
    /// A hard link was made.
    Link,
    /// A directory was made.
    MakeDirectory,
    /// A directory was removed.
    RemoveDirectory,
    /// A device, socket or pipe was made.
    MakeNode,
    /// A file was opened for writing.
    Open,
    /// A file was truncated.
    Truncate,
    /// A mode, an owner, a size or a time was set.
    Attributes,
    /// An extended attribute was set.
    ExtendedAttributes,
    /// Something was mounted over it.
    Mount,
}

/// The records' codes, their operations and names.
const OPERATIONS: [(Code, Operation, &str); 15] = [
    (Code::Create, Operation::Create, "create"),
    (Code::Written, Operation::Written, "write"),
    (Code::MovedFrom, Operation::MovedFrom, "rename away"),
    (Code::MovedTo, Operation::MovedTo, "rename here"),
    (Code::Unlink, Operation::Unlink, "unlink"),
    (Code::Symlink, Operation::Symlink, "symlink"),
    (Code::Link, Operation::Link, "link"),
    (Code::MakeDirectory, Operation::MakeDirectory, "mkdir"),
    (Code::RemoveDirectory, Operation::RemoveDirectory, "rmdir"),
    (Code::MakeNode, Operation::MakeNode, "mknod"),
    (Code::Open, Operation::Open, "open for writing"),
    (Code::Truncate, Operation::Truncate, "truncate"),
    (Code::Attributes, Operation::Attributes, "set attributes"),
    (Code::ExtendedAttributes, Operation::ExtendedAttributes, "set extended attributes"),
    (Code::Mount, Operation::Mount, "mount over"),
];

impl Operation {
    fn from_code(code: u32) -> Option<Self> {
        OPERATIONS.iter().find(|(known, ..)| *known as u32 == code).map(|(_, operation, _)| *operation)
    }

    /// The name for messages.
    pub fn name(self) -> &'static str {
        OPERATIONS.iter().find(|(_, operation, _)| *operation == self).map_or("change", |(.., name)| name)
    }
}

/// A change in a directory, made or attempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    pub directory: InodeId,
    pub name: Vec<u8>,
    pub operation: Operation,
    /// The process.
    pub actor: Actor,
    /// The actor's executable; begins with `…/` where the path is truncated. None for kernel threads.
    pub executable: Option<String>,
}

/// An event of the BPF programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A watched directory has changed.
    Write(FileChange),
    /// The guard's rules forbid the change.
    Refused {
        /// The attempted change.
        change: FileChange,
        /// Whether it was refused; false: it was only reported (audit).
        refused: bool,
        /// The number of attempts of its cgroup, operation and directory that it represents, itself included.
        attempts: u32,
    },
    /// The OOM killer's victim has begun to exit.
    OomVictim { process: Actor },
    /// A followed process exits; the last signal that ends processes of those sent to it.
    Signal {
        /// The pid it was sent to.
        target: u32,
        /// Its number.
        signal: u32,
        /// Whether the kernel sent it: a fault, the OOM killer, a terminal.
        by_kernel: bool,
        /// The sender; for the kernel's own signals, the process that was running.
        sender: Actor,
    },
}

impl Event {
    /// Decodes one record. None if its kind is unknown or it is truncated.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut record = Fields(bytes);
        let (kind, process) = actor(&mut record)?;
        if kind == EventKind::OomVictim as u32 {
            return Some(Self::OomVictim { process });
        }
        if kind == EventKind::Signal as u32 {
            let (target, signal, code) = (record.u32()?, record.u32()?, record.u32()?.cast_signed());
            return Some(Self::Signal { target, signal, by_kernel: code > 0, sender: process });
        }
        if kind == EventKind::Write as u32 {
            return written(process, &mut record).map(Self::Write);
        }
        let (inode, device) = (record.u64()?, record.u32()?);
        let (operation, refused) = (Operation::from_code(record.u32()?)?, record.u32()? != 0);
        let (attempts, _reserved, whole) = (record.u32()?, record.u32()?, record.u32()? != 0);
        let name = until_zero(record.take::<NAME_LENGTH>()?).to_vec();
        let executable = path(&mut record, whole)?;
        let directory = InodeId::from_kernel(device, inode);
        let change = FileChange { directory, name, operation, actor: process, executable };
        match kind {
            kind if kind == EventKind::Refused as u32 => Some(Self::Refused { change, refused, attempts }),
            _ => None,
        }
    }
}

fn actor(record: &mut Fields<'_>) -> Option<(u32, Actor)> {
    let (kind, pid, cgroup) = (record.u32()?, record.u32()?, record.u64()?);
    let (parent, uid) = (record.u32()?, record.u32()?);
    let command = String::from_utf8_lossy(until_zero(record.take::<16>()?)).into_owned();
    Some((kind, Actor { pid, parent: (parent != 0).then_some(parent), uid, command, cgroup }))
}

fn written(actor: Actor, record: &mut Fields<'_>) -> Option<FileChange> {
    let (inode, device) = (record.u64()?, record.u32()?);
    let (operation, whole) = (Operation::from_code(record.u32()?)?, record.u32()? != 0);
    let _reserved = record.u32()?;
    // Each text has a zero behind it.
    let mut texts = record.0.split(|byte| *byte == 0);
    let name = texts.next()?.to_vec();
    let executable = joined(texts, whole);
    Some(FileChange { directory: InodeId::from_kernel(device, inode), name, operation, actor, executable })
}

/// The path, whose names are stored last first; `Some(None)` when there is none.
fn path(record: &mut Fields<'_>, whole: bool) -> Option<Option<String>> {
    let parts = (0..PARTS).map(|_| record.take::<PART_LENGTH>().map(|part| until_zero(part)));
    Some(joined(parts.collect::<Option<Vec<_>>>()?.into_iter(), whole))
}

/// A path of names, the last one first; none of an empty one.
fn joined<'a>(names: impl Iterator<Item = &'a [u8]>, whole: bool) -> Option<String> {
    let mut names: Vec<_> = names.filter(|name| !name.is_empty()).map(String::from_utf8_lossy).collect();
    names.reverse();
    let cut = if whole { "" } else { "…" };
    (!names.is_empty()).then(|| format!("{cut}/{}", names.join("/")))
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Reads the fields of a record in order, little endian.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

// The fields above are read in the order of these records, which have no padding.
const _: () = assert!(size_of::<ActorRecord>() == 40);
const _: () = assert!(size_of::<SignalRecord>() == 56);
const _: () = assert!(size_of::<ChangeRecord>() == 64);
const _: () = assert!(size_of::<FileRecord>() == 72 + NAME_LENGTH + PARTS * PART_LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: EventKind) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((kind as u32).to_le_bytes());
        bytes.extend(42u32.to_le_bytes());
        bytes.extend(7u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(1000u32.to_le_bytes());
        bytes.extend(*b"writer\0\0\0\0\0\0\0\0\0\0");
        bytes
    }

    fn writer() -> Actor {
        Actor { pid: 42, parent: None, uid: 1000, command: "writer".to_owned(), cgroup: 7 }
    }

    /// Zero terminated, and followed by stale bytes.
    fn name<const N: usize>(text: &[u8]) -> [u8; N] {
        let mut bytes = [b'x'; N];
        bytes[..text.len()].copy_from_slice(text);
        bytes[text.len()] = 0;
        bytes
    }

    #[test]
    fn records_are_decoded_by_field() {
        let victim = header(EventKind::OomVictim);
        assert_eq!(Event::decode(&victim), Some(Event::OomVictim { process: writer() }));

        let mut signal = header(EventKind::Signal);
        signal.extend([9, 0, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let expected = Event::Signal { target: 9, signal: 15, by_kernel: false, sender: writer() };
        assert_eq!(Event::decode(&signal), Some(expected));

        let mut refused = header(EventKind::Refused);
        refused.extend(11u64.to_le_bytes());
        refused.extend((8u32 << 20 | 1).to_le_bytes());
        refused.extend((Code::MovedTo as u32).to_le_bytes());
        refused.extend([1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        refused.extend(name::<NAME_LENGTH>(b"web.yaml"));
        for part in [&b"mv"[..], b"bin", b"", b"usr"] {
            refused.extend(name::<PART_LENGTH>(part));
        }
        refused.resize(size_of::<FileRecord>(), 0);
        let expected = Event::Refused { change: moved("/usr/bin/mv"), refused: true, attempts: 3 };
        assert_eq!(Event::decode(&refused), Some(expected));
    }

    fn moved(executable: &str) -> FileChange {
        FileChange {
            directory: InodeId { device: rustix::fs::makedev(8, 1), inode: 11 },
            name: b"web.yaml".to_vec(),
            operation: Operation::MovedTo,
            actor: writer(),
            executable: Some(executable.to_owned()),
        }
    }

    #[test]
    fn the_texts_of_a_change_are_as_long_as_they_are() {
        let mut write = header(EventKind::Write);
        write.extend(11u64.to_le_bytes());
        write.extend((8u32 << 20 | 1).to_le_bytes());
        write.extend((Code::MovedTo as u32).to_le_bytes());
        write.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(write.len(), size_of::<ChangeRecord>());
        write.extend(b"web.yaml\0mv\0bin\0usr\0");
        assert_eq!(Event::decode(&write), Some(Event::Write(moved("/usr/bin/mv"))));
        write[56] = 0;
        assert_eq!(Event::decode(&write), Some(Event::Write(moved("…/usr/bin/mv"))));
        write.truncate(size_of::<ChangeRecord>() + 9);
        let change = FileChange { executable: None, ..moved("") };
        assert_eq!(Event::decode(&write), Some(Event::Write(change)), "a thread of the kernel");
    }

    #[test]
    fn a_truncated_or_unknown_record_is_no_event() {
        let signal = header(EventKind::Signal);
        assert_eq!(Event::decode(&signal), None);
        let mut unknown = header(EventKind::Write);
        unknown.resize(size_of::<FileRecord>(), 0);
        assert_eq!(Event::decode(&unknown), None);
        assert_eq!(Event::decode(&[]), None);
    }
}
