//! Who changes something in a watched directory.
//!
//! At the entry of the function by which the kernel tells inotify and fanotify, so only of what was done, by the same name,
//! and before either can be read. A kprobe, because the kernel does not preempt one: a program of another kind (fentry,
//! fexit) is skipped for every other process of the CPU while a process is preempted in it.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::kprobe;
use aya_ebpf::programs::ProbeContext;
use limpet_events::Operation;

use crate::kernel::{self, Pointer};
use crate::{files, maps};

/// Events of `fsnotify()`, numbered as in `linux/inotify.h`, which no kernel may change.
const ATTRIB: u32 = 0x4;
const CLOSE_WRITE: u32 = 0x8;
const MOVED_FROM: u32 = 0x40;
const MOVED_TO: u32 = 0x80;
const CREATE: u32 = 0x100;
const DELETE: u32 = 0x200;
const OF_DIRECTORY: u32 = 0x4000_0000;

/// What an event is; none for those that the agent does not watch for.
#[inline(always)]
fn operation(mask: u32) -> Option<Operation> {
    let of_directory = mask & OF_DIRECTORY != 0;
    // One bit at a time: the kernel tells of one event in each call.
    Some(match mask & (ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE) {
        CLOSE_WRITE => Operation::Written,
        CREATE if of_directory => Operation::MakeDirectory,
        CREATE => Operation::Create,
        DELETE if of_directory => Operation::RemoveDirectory,
        DELETE => Operation::Unlink,
        MOVED_FROM => Operation::MovedFrom,
        MOVED_TO => Operation::MovedTo,
        ATTRIB => Operation::Attributes,
        _ => return None,
    })
}

/// Every event of a watched file comes by here, so what is asked first is cheapest.
#[kprobe]
fn watch_change(ctx: ProbeContext) -> u32 {
    let registers = ctx.as_ptr() as Pointer;
    if let Some(operation) = kernel::event_mask(registers).and_then(operation)
        && let Some(directory) = kernel::event_directory(registers)
        && let Some(key) = kernel::inode_key(directory)
        && maps::is_watched(&key)
        && let Some(name) = kernel::event_name(registers)
    {
        files::tell_change(operation, &key, name);
    }
    0
}
