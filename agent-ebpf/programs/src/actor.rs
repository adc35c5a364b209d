//! Who runs at this moment.

use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
};
use limpet_events::{ActorRecord, EventKind};

use crate::kernel;

/// Deepest level that is looked at, from the root down: what a container makes below its own cgroup hides nothing.
const DEEPEST: i32 = 10;

/// The current process's record.
#[inline(always)]
pub fn record(kind: EventKind) -> ActorRecord {
    ActorRecord {
        kind: kind as u32,
        pid: process(),
        cgroup: cgroup(),
        parent: kernel::parent(),
        uid: bpf_get_current_uid_gid() as u32,
        command: bpf_get_current_comm().unwrap_or_default(),
    }
}

/// The current process's cgroup: its id in the v2 hierarchy.
#[inline(always)]
pub fn cgroup() -> u64 {
    // SAFETY: the helper has no conditions.
    unsafe { bpf_get_current_cgroup_id() }
}

/// The current process (thread group).
pub fn process() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// The current thread.
pub fn thread() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// Whether the current process's cgroup, or one above it, is `wanted`.
#[inline(always)]
pub fn is_below(wanted: fn(u64) -> bool) -> bool {
    for level in 1..=DEEPEST {
        let id = kernel::ancestor(level);
        if id == 0 {
            return false;
        }
        if wanted(id) {
            return true;
        }
    }
    false
}
