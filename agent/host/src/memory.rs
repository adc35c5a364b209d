//! Returns memory to the kernel after a burst, such as loading BPF programs or starting many pods: free heap memory,
//! which glibc would keep, and the program's text, most of which an idle agent does not execute.

use nix::libc;

/// Allocations from this size in bytes on get their own mapping, which `free` unmaps. It exceeds the chunks of an
/// image pull.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 512 << 10;
/// Bytes that may stay free at the top of the heap.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: libc::c_int = 128 << 10;

/// The address space of a thread's stack in bytes: Linux' usual. glibc caches the stacks of ended threads, up to 40
/// MiB of them, each with some 16 KiB that were used: 5 stacks of this size, but 20 of std's own 2 MiB.
pub const THREAD_STACK: usize = 8 << 20;

/// Limits the free memory that the allocator retains. By default it raises both limits to the size of the last freed
/// block, so that loading BPF programs once costs 10 MiB forever; and it has an arena for each of eight threads,
/// although one thread does nearly all the work. Call it at the start, before there is a second thread.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn limit_free_memory() {
    let settings =
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD), (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD)];
    for (parameter, value) in settings {
        // SAFETY: mallopt takes two integers and the allocator's own lock.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free heap memory to the kernel, and unmaps the program's text. Takes some milliseconds: call it after a
/// burst, not regularly.
pub fn release_memory() {
    trim();
    unmap_text();
}

/// Unmaps the program's segments that are never written: its text and constants. The page cache keeps them, so that
/// executed pages are mapped again without reading the disk; the kernel takes the rest first when it is short of
/// memory, since no page table holds it. Breakpoints set by a debugger are lost.
#[allow(unsafe_code)]
fn unmap_text() {
    // SAFETY: the callback has the signature that dl_iterate_phdr requires, and uses no data.
    unsafe { libc::dl_iterate_phdr(Some(unmap_program), std::ptr::null_mut()) };
}

/// Unmaps the read-only segments of the first object that `dl_iterate_phdr` has, which is the program, and ends the
/// iteration.
#[allow(unsafe_code)]
unsafe extern "C" fn unmap_program(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut libc::c_void,
) -> libc::c_int {
    let page = rustix::param::page_size();
    // SAFETY: `object` and its program headers are valid for the call, as dl_iterate_phdr promises.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr as usize, std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)))
    };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let begin = (base + header.p_vaddr as usize).next_multiple_of(page);
        let end = (base + header.p_vaddr as usize + header.p_memsz as usize) / page * page;
        if begin < end {
            // SAFETY: the pages are those of a private mapping of a file that nothing has written to, relocations
            // included, as they lie in writable segments: the kernel maps the same content again when one is used.
            unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) };
        }
    }
    1
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks, frees nothing that is in use, and may be called by any thread.
    unsafe { libc::malloc_trim(0) };
}

/// [`release_memory`] for callers that must not wait.
pub async fn release_on_the_blocking_pool() {
    if let Err(error) = tokio::task::spawn_blocking(release_memory).await {
        tracing::error!(%error, "returning memory to the kernel failed");
    }
}

/// Other libraries have limits of their own.
#[cfg(not(target_env = "gnu"))]
pub fn limit_free_memory() {}

/// Other libraries return free memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// Constants that only this test reads, with room around the middle one: when a page is used, the kernel also
    /// maps its neighbours.
    static CONSTANTS: [u8; 1 << 20] = [7; 1 << 20];

    fn middle() -> &'static u8 {
        std::hint::black_box(&CONSTANTS[CONSTANTS.len() / 2])
    }

    /// Whether a page table holds the page with `byte`: bit 63 of its entry in /proc/self/pagemap.
    fn is_mapped(byte: &u8) -> bool {
        let page = (std::ptr::from_ref(byte).addr() / rustix::param::page_size()) as u64;
        let mut entry = [0; 8];
        std::fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, page * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn what_is_unmapped_is_there_when_it_is_used_again() {
        assert_eq!(*middle(), 7);
        assert!(is_mapped(middle()));
        release_memory();
        assert!(!is_mapped(middle()));
        assert_eq!(*middle(), 7);
        assert!(is_mapped(middle()));
    }
}
