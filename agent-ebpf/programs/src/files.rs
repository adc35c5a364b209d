//! Records of what happens to files.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use limpet_events::{EventKind, FileRecord, NAME_LENGTH, Operation, PART_LENGTH, PARTS};

use crate::actor;
use crate::kernel::{self, Above, Place, Pointer};
use crate::maps::{self, InodeKey};

/// What a record is about, in one register: a program's function takes five arguments at most.
#[derive(Clone, Copy)]
pub struct Report(u64);

impl Report {
    /// A change that was made, or is about to be.
    pub const WRITE: Self = Self(0);

    /// The guard met that many attempts.
    #[inline(always)]
    pub fn attempts(number: u32, refused: bool) -> Self {
        Self((number as u64) << 1 | refused as u64)
    }

    #[inline(always)]
    fn kind(self) -> EventKind {
        if self.0 == 0 { EventKind::Write } else { EventKind::Refused }
    }
}

/// Tells of `operation` on the name of `dentry` in the directory `key`.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn tell(report: Report, operation: Operation, key: &InodeKey, dentry: Pointer) {
    let Some(mut entry) = maps::reserve::<FileRecord>() else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the reserved bytes are a FileRecord's; every field is written, the name by the helper or as empty.
    unsafe {
        (&raw mut (*record).actor).write(actor::record(report.kind()));
        (&raw mut (*record).inode).write(key[0]);
        (&raw mut (*record).device).write(key[1] as u32);
        (&raw mut (*record).operation).write(operation as u32);
        (&raw mut (*record).refused).write((report.0 & 1) as u32);
        (&raw mut (*record).attempts).write((report.0 >> 1) as u32);
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
