//! Records of what happens to files.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use limpet_events::{EventKind, FileRecord, NAME_LENGTH, Operation};

use crate::actor;
use crate::kernel::{self, Pointer};
use crate::maps::{self, InodeKey};

/// Tells of `operation` on the name of `dentry` in the directory `key`.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn tell(kind: EventKind, operation: Operation, key: &InodeKey, dentry: Pointer, refused: bool) {
    let Some(mut entry) = maps::reserve::<FileRecord>() else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the reserved bytes are a FileRecord's; every field is written, the name by the helper or as empty.
    unsafe {
        (&raw mut (*record).actor).write(actor::record(kind));
        (&raw mut (*record).inode).write(key[0]);
        (&raw mut (*record).device).write(key[1] as u32);
        (&raw mut (*record).operation).write(operation as u32);
        (&raw mut (*record).refused).write(refused as u32);
        (&raw mut (*record).reserved).write(0);
        let name = (&raw mut (*record).name).cast::<u8>();
        name.write(0);
        if let Some(source) = kernel::dentry_name(dentry) {
            bpf_probe_read_kernel_str(name.cast(), NAME_LENGTH as u32, source);
        }
    }
    entry.submit(0);
}
