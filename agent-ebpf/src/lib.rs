//! The records and constants shared by limpet's BPF programs and its agent: `no_std`, one layout for both sides.
//!
//! The programs write these records into the ring buffer; the agent reads them by field. Little endian, as the programs are.
#![no_std]

/// The kind of a record: the first field of every record on the ring buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// The OOM killer's victim has begun to exit: [`ActorRecord`] alone.
    OomVictim = 1,
    /// A followed process exits; the last fatal signal that was sent to it: [`SignalRecord`].
    Signal = 2,
    /// Something has changed in a watched directory: [`ChangeRecord`], and its texts.
    Write = 3,
    /// The guard met an attempt that its rules forbid: [`FileRecord`].
    Refused = 4,
}

/// The operation that was made, or attempted, on a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// A file was created.
    Create = 1,
    /// A file opened for writing was closed.
    Written = 2,
    /// A name was moved out of the directory.
    MovedFrom = 3,
    /// A name was moved into the directory.
    MovedTo = 4,
    /// A name was removed.
    Unlink = 5,
    /// A symlink was made.
    Symlink = 6,
    /// A hard link was made.
    Link = 7,
    /// A directory was made.
    MakeDirectory = 8,
    /// A directory was removed.
    RemoveDirectory = 9,
    /// A device, socket or pipe was made.
    MakeNode = 10,
    /// A file was opened for writing.
    Open = 11,
    /// A file was truncated.
    Truncate = 12,
    /// A mode, an owner, a size or a time was set.
    Attributes = 13,
    /// An extended attribute was set.
    ExtendedAttributes = 14,
    /// Something was mounted over it.
    Mount = 15,
}

/// Longest name of a file, with its terminating zero.
pub const NAME_LENGTH: usize = 256;
/// Names of an executable's path that are recorded, mounts on the way included.
pub const PARTS: usize = 10;
/// Longest of them, with its terminating zero.
pub const PART_LENGTH: usize = 64;

/// The acting process: first in every record. For an OOM victim, the process that exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ActorRecord {
    /// An [`EventKind`].
    pub kind: u32,
    /// The process (thread group) in the initial namespace.
    pub pid: u32,
    /// Its cgroup's id in the v2 hierarchy.
    pub cgroup: u64,
    /// Its parent; 0 when unknown.
    pub parent: u32,
    /// Its real user.
    pub uid: u32,
    /// Its name, zero terminated.
    pub command: [u8; 16],
}

/// [`EventKind::Signal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct SignalRecord {
    /// The sender; the kernel's own signals come from the process that was running.
    pub sender: ActorRecord,
    /// The pid it was sent to.
    pub target: u32,
    /// Its number.
    pub signal: u32,
    /// `si_code`: above 0 the kernel sent it.
    pub code: i32,
    /// No meaning.
    pub reserved: u32,
}

/// [`EventKind::Write`]. Zero-terminated texts follow, as long as they are: the name in the directory, then the actor's
/// program, its name first, then the directories above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ChangeRecord {
    /// The acting process.
    pub actor: ActorRecord,
    /// The directory's inode.
    pub inode: u64,
    /// The directory's file system, as the kernel numbers devices: `major << 20 | minor`.
    pub device: u32,
    /// An [`Operation`].
    pub operation: u32,
    /// 1 when the executable is the whole path, 0 when its beginning is missing or a name was truncated.
    pub whole: u32,
    /// No meaning.
    pub reserved: u32,
}

/// [`EventKind::Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FileRecord {
    /// The acting process.
    pub actor: ActorRecord,
    /// The directory's inode.
    pub inode: u64,
    /// The directory's file system, as the kernel numbers devices: `major << 20 | minor`.
    pub device: u32,
    /// An [`Operation`].
    pub operation: u32,
    /// 1 when the attempt was refused, 0 when it was allowed.
    pub refused: u32,
    /// How many attempts like this one it stands for, itself included.
    pub attempts: u32,
    /// No meaning.
    pub reserved: u32,
    /// 1 when `executable` is the whole path, 0 when its beginning is missing or a name was truncated.
    pub whole: u32,
    /// The name in the directory, zero terminated.
    pub name: [u8; NAME_LENGTH],
    /// The actor's program: its name first, then the directories above it; empty where a mount is crossed.
    pub executable: [[u8; PART_LENGTH]; PARTS],
}

/// The value of a guarded inode: which changes are refused.
pub mod guarded {
    /// Names in this directory: created, removed, renamed, written, changed.
    pub const CHILDREN: u32 = 1;
    /// The inode itself: written, changed, removed, renamed, mounted over.
    pub const ITSELF: u32 = 2;
    /// The path of the inode: removed, renamed, mounted over.
    pub const PLACE: u32 = 4;
    /// Opened by its handle, so that no directory is known: any file of the file system whose key has the inode
    /// [`ANY_INODE`].
    pub const DETACHED: u32 = 8;
    /// The same flags, this many bits to the left, are of what is refused to pods and to nobody else, whatever the mode:
    /// the guard's own pins, which a new version replaces, and what is the host's to change.
    pub const FROM_PODS: u32 = 4;

    /// Stands for every inode of a file system: no inode has this number.
    pub const ANY_INODE: u64 = 0;
}

/// The guard's modes, as its programs know them.
pub mod mode {
    /// Nothing is refused, what [`CONTAINERS`] would refuse is reported.
    pub const AUDIT: u32 = 1;
    /// Processes below a pod cgroup are refused.
    pub const CONTAINERS: u32 = 2;
    /// All are refused but those allowed.
    pub const STRICT: u32 = 3;
}

/// An offset that the kernel's BTF does not have.
pub const UNKNOWN: u32 = u32::MAX;

const _: () = assert!(size_of::<ActorRecord>() == 40);
const _: () = assert!(size_of::<SignalRecord>() == 56);
const _: () = assert!(size_of::<ChangeRecord>() == 64);
const _: () = assert!(size_of::<FileRecord>() == 72 + NAME_LENGTH + PARTS * PART_LENGTH);
