//! What the agent and the programs share at run time.

use aya_ebpf::macros::map;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::maps::{HashMap, LruHashMap, PerCpuArray, RingBuf};
use limpet_events::{ChangeRecord, NAME_LENGTH, PART_LENGTH, PARTS, SignalRecord};

/// Inode and device of a directory, as the kernel numbers devices.
pub type InodeKey = [u64; 2];

/// Who tries what, and where: cgroup, operation, inode and device. Nothing that a process can choose for each attempt.
pub type AttemptKey = [u64; 4];

/// What is known of attempts of one kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Attempts {
    /// When one was reported last, in nanoseconds since boot.
    reported: u64,
    /// How many came since.
    since: u64,
}

/// Attempts of one kind are reported once in this time, in nanoseconds.
const REPORT_INTERVAL: u64 = 1_000_000_000;

/// A change before it goes to the ring, where it takes no more than its texts need.
#[repr(C)]
pub struct Draft {
    pub head: ChangeRecord,
    /// Longer than any: what is written at an offset below [`TEXTS`] stays inside.
    pub texts: [u8; TEXTS + NAME_LENGTH],
}

/// No texts are longer. A power of two: the verifier takes an offset that is masked.
pub const TEXTS: usize = (NAME_LENGTH + PARTS * PART_LENGTH).next_power_of_two();

/// All events. 256 KiB hold the exits of all [`PROCESSES`]; the loader makes it larger where changes of files come, too.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);
/// Where the program that is not preempted makes up its record.
#[map]
static DRAFT: PerCpuArray<Draft> = PerCpuArray::with_max_entries(1, 0);
/// How many records found no room.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);
/// Directories whose changes are told.
#[map]
static WATCHED: HashMap<InodeKey, u32> = HashMap::with_max_entries(64, 0);
/// Followed processes, each with the last signal that was sent to it: the signal 0 before the first.
#[map]
static PROCESSES: HashMap<u32, SignalRecord> = HashMap::with_max_entries(2048, 0);
/// Threads that the OOM killer has chosen and that have not begun to exit.
#[map]
static VICTIMS: LruHashMap<u32, u32> = LruHashMap::with_max_entries(256, 0);
/// What the guard protects there.
#[map]
static GUARDED: HashMap<InodeKey, u32> = HashMap::with_max_entries(1024, 0);
/// Cgroups (v2 ids) below which are pods.
#[map]
static POD_CGROUPS: HashMap<u64, u32> = HashMap::with_max_entries(64, 0);
/// Cgroups (v2 ids) that may write in strict mode, with those below.
#[map]
static ALLOWED_CGROUPS: HashMap<u64, u32> = HashMap::with_max_entries(64, 0);
/// Executables that may write in strict mode.
#[map]
static ALLOWED_EXECUTABLES: HashMap<InodeKey, u32> = HashMap::with_max_entries(256, 0);
/// Attempts against the guard that are reported once for many: who tries what, and where.
#[map]
static ATTEMPTS: LruHashMap<AttemptKey, Attempts> = LruHashMap::with_max_entries(512, 0);
/// Threads that are refused whatever the mode: how the loader proves that the guard works.
#[map]
static ON_TRIAL: HashMap<u32, u32> = HashMap::with_max_entries(16, 0);

/// Room for one record; a record that finds none is counted.
pub fn reserve<T: 'static>() -> Option<aya_ebpf::maps::ring_buf::RingBufEntry<T>> {
    let entry = EVENTS.reserve::<T>(0);
    if entry.is_none() {
        count_lost();
    }
    entry
}

#[inline(always)]
fn count_lost() {
    if let Some(lost) = LOST.get_ptr_mut(0) {
        // SAFETY: a per-CPU value, and a program is not moved to another CPU.
        unsafe { *lost += 1 };
    }
}

/// This CPU's draft: for programs that the kernel does not preempt.
pub fn draft() -> Option<*mut Draft> {
    DRAFT.get_ptr_mut(0)
}

/// Sends the draft with so many bytes of its texts; one that finds no room is counted.
#[inline(always)]
pub fn send(draft: *const Draft, texts: usize) {
    let length = size_of::<ChangeRecord>() + (core::hint::black_box(texts) & (TEXTS - 1));
    // SAFETY: the head, and not all of the texts.
    let bytes = unsafe { core::slice::from_raw_parts(draft.cast::<u8>(), length) };
    if EVENTS.output::<[u8]>(bytes, 0).is_err() {
        count_lost();
    }
}

pub fn is_watched(key: &InodeKey) -> bool {
    // SAFETY: only looked whether it is there.
    unsafe { WATCHED.get(key) }.is_some()
}

/// Where the last signal to a followed process is kept.
pub fn last_signal(pid: u32) -> Option<*mut SignalRecord> {
    PROCESSES.get_ptr_mut(&pid)
}

/// How many attempts like this one are to be reported now, itself included; `None`: it is counted, and reported with a
/// later one. A process that repeats a refused call fills no ring with it.
pub fn attempts(key: &AttemptKey) -> Option<u32> {
    // SAFETY: the helper has no conditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(known) = ATTEMPTS.get_ptr_mut(key) else {
        let _ = ATTEMPTS.insert(key, &Attempts { reported: now, since: 0 }, 0);
        return Some(1);
    };
    // SAFETY: a value of the map; two CPUs that count at once may lose one of many.
    let known = unsafe { &mut *known };
    known.since = known.since.saturating_add(1);
    if now.saturating_sub(known.reported) < REPORT_INTERVAL {
        return None;
    }
    known.reported = now;
    Some(core::mem::take(&mut known.since) as u32)
}

pub fn add_victim(thread: u32) {
    // Not `&1`: a constant of its own would have a name that differs by the path of the checkout.
    let there = core::hint::black_box(1);
    let _ = VICTIMS.insert(&thread, &there, 0);
}

/// Whether `thread` was a victim; it is none any more.
pub fn take_victim(thread: u32) -> bool {
    VICTIMS.remove(&thread).is_ok()
}

/// What is guarded at `key`: flags of `limpet_events::guarded`.
pub fn guarded(key: &InodeKey) -> u32 {
    // SAFETY: a value is written once, before the programs are attached.
    unsafe { GUARDED.get(key) }.copied().unwrap_or(0)
}

pub fn is_pod_cgroup(id: u64) -> bool {
    // SAFETY: as for WATCHED.
    unsafe { POD_CGROUPS.get(&id) }.is_some()
}

pub fn is_allowed_cgroup(id: u64) -> bool {
    // SAFETY: as for WATCHED.
    unsafe { ALLOWED_CGROUPS.get(&id) }.is_some()
}

pub fn is_allowed_executable(key: &InodeKey) -> bool {
    // SAFETY: as for WATCHED.
    unsafe { ALLOWED_EXECUTABLES.get(key) }.is_some()
}

pub fn is_on_trial(thread: u32) -> bool {
    // SAFETY: as for WATCHED.
    unsafe { ON_TRIAL.get(&thread) }.is_some()
}
