//! Records of what happens to files.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use limpet_events::{ChangeRecord, EventKind, FileRecord, NAME_LENGTH, Operation, PART_LENGTH, PARTS};

use crate::actor;
use crate::kernel::{self, Above, Place, Pointer};
use crate::maps::{self, InodeKey, TEXTS};

/// Tells of `operation` on the name that lies at `name` in the kernel, in the directory `key`. For programs that the kernel
/// does not preempt.
#[inline(always)]
pub fn tell_change(operation: Operation, key: &InodeKey, name: Pointer) {
    let Some(draft) = maps::draft() else { return };
    // SAFETY: a value of the map, which nobody else writes meanwhile.
    let texts = unsafe { (&raw mut (*draft).texts).cast::<u8>() };
    let mut length = 0;
    append(texts, &mut length, NAME_LENGTH, name);
    let whole = append_executable(texts, &mut length);
    let head = ChangeRecord {
        actor: actor::record(EventKind::Write),
        inode: key[0],
        device: key[1] as u32,
        operation: operation as u32,
        whole: whole as u32,
        reserved: 0,
    };
    // SAFETY: as above.
    unsafe { (&raw mut (*draft).head).write(head) };
    maps::send(draft, length);
}

/// Appends the text at `source`, at most `limit` bytes with its zero, to those of a draft. Whether it was copied uncut.
#[inline(always)]
fn append(texts: *mut u8, length: &mut usize, limit: usize, source: Pointer) -> bool {
    // Hidden from the compiler, which would leave the mask out: the verifier needs it.
    let at = core::hint::black_box(*length) & (TEXTS - 1);
    // SAFETY: a draft has room for a name behind every such offset.
    let copied = unsafe { bpf_probe_read_kernel_str(texts.add(at).cast(), limit as u32, source) };
    if copied <= 0 || copied > limit as i64 {
        return false;
    }
    *length = at + copied as usize;
    copied < limit as i64
}

/// Appends the path of the current process's executable, from its name up. Whether that is all of it, uncut.
#[inline(always)]
fn append_executable(texts: *mut u8, length: &mut usize) -> bool {
    let mut next = Place::of_executable();
    let mut uncut = true;
    for _ in 0..PARTS {
        let Some(place) = next else { return false };
        next = match place.above() {
            Some(Above::Directory(directory)) => {
                let Some(name) = place.name() else { return false };
                uncut &= append(texts, length, PART_LENGTH, name);
                Some(directory)
            }
            Some(Above::MountPoint(point)) => Some(point),
            Some(Above::Nothing) => return uncut,
            None => None,
        };
    }
    false
}

/// Tells of so many attempts of `operation` on the name of `dentry` in the directory `key`.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn tell(attempts: Attempts, operation: Operation, key: &InodeKey, dentry: Pointer) {
    let Some(mut entry) = maps::reserve::<FileRecord>() else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the reserved bytes are a FileRecord's; every field is written, the name by the helper or as empty.
    unsafe {
        (&raw mut (*record).actor).write(actor::record(EventKind::Refused));
        (&raw mut (*record).inode).write(key[0]);
        (&raw mut (*record).device).write(key[1] as u32);
        (&raw mut (*record).operation).write(operation as u32);
        (&raw mut (*record).refused).write((attempts.0 & 1) as u32);
        (&raw mut (*record).attempts).write((attempts.0 >> 1) as u32);
        (&raw mut (*record).reserved).write(0);
        let name = (&raw mut (*record).name).cast::<u8>();
        name.write(0);
        if let Some(source) = kernel::dentry_name(dentry) {
            bpf_probe_read_kernel_str(name.cast(), NAME_LENGTH as u32, source);
        }
        let whole = write_executable((&raw mut (*record).executable).cast());
        (&raw mut (*record).whole).write(whole as u32);
    }
    entry.submit(0);
}

/// How many attempts, and whether they were refused, in one register: a program's function takes five arguments at most.
#[derive(Clone, Copy)]
pub struct Attempts(u64);

impl Attempts {
    #[inline(always)]
    pub fn new(number: u32, refused: bool) -> Self {
        Self((number as u64) << 1 | refused as u64)
    }
}

/// Writes the path of the current process's executable, from its name up. Whether that is all of it, uncut.
///
/// # Safety
/// `parts` are [`PARTS`] of [`PART_LENGTH`] bytes.
#[inline(always)]
unsafe fn write_executable(parts: *mut [u8; PART_LENGTH]) -> bool {
    for part in 0..PARTS {
        // SAFETY: one of the parts.
        unsafe { parts.add(part).cast::<u8>().write(0) };
    }
    let mut next = Place::of_executable();
    let mut uncut = true;
    for part in 0..PARTS {
        let Some(place) = next else { return false };
        next = match place.above() {
            Some(Above::Directory(directory)) => {
                let Some(name) = place.name() else { return false };
                // SAFETY: one of the parts, whole.
                let length = unsafe { bpf_probe_read_kernel_str(parts.add(part).cast(), PART_LENGTH as u32, name) };
                uncut &= length > 0 && length < PART_LENGTH as i64;
                Some(directory)
            }
            Some(Above::MountPoint(point)) => Some(point),
            Some(Above::Nothing) => return uncut,
            None => None,
        };
    }
    false
}
