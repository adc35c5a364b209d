//! The event types shared between limpet's BPF programs and its agent: `no_std`, one layout for both sides.
#![no_std]

/// Why the kernel told us: the first field of every event on the ring buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// A process has begun to exit (`sched_process_exit`).
    ProcessExit = 1,
    /// The OOM killer has chosen a victim (`oom/mark_victim`).
    OomVictim = 2,
}

/// What is common to all events: no padding, the same bytes on every architecture of one endianness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct EventHeader {
    /// An [`EventKind`].
    pub kind: u32,
    /// The process's id in the initial namespace.
    pub pid: u32,
    /// The process's cgroup v2 id.
    pub cgroup_id: u64,
}

const _: () = assert!(size_of::<EventHeader>() == 16);
