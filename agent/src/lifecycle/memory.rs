//! Memory that was needed once, such as for loading BPF programs or starting many pods, is given back to the kernel: glibc
//! keeps it otherwise, and the kernel takes mapped program text for needed.

use std::ops::Range;
use std::sync::Arc;

#[cfg(target_env = "gnu")]
use nix::libc;
use rustix::mm::{Advice, madvise};
use tokio_util::sync::CancellationToken;

use super::followed::Followed;

/// Bytes: what is as large is mapped by itself, and gone when it is freed. More than the chunks of an image's download.
#[cfg(target_env = "gnu")]
const MAPPED_BY_ITSELF: libc::c_int = 512 << 10;
/// Bytes that may stay free at the end of the heap.
#[cfg(target_env = "gnu")]
const KEPT_AT_THE_END: libc::c_int = 128 << 10;

/// Has the allocator keep little of what is freed. Left alone it raises both limits to what was freed last, so loading BPF
/// programs once left 10 MiB for ever; and it has a heap for each of eight threads, where one thread does nearly all.
/// For the start, before the second thread.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn keep_little() {
    let settings =
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MAPPED_BY_ITSELF), (libc::M_TRIM_THRESHOLD, KEPT_AT_THE_END)];
    for (parameter, value) in settings {
        // SAFETY: it takes two integers and the allocator's own lock.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives back what is free, and takes the program's text out of the process. Takes some milliseconds; for after a burst, not
/// for every day.
pub fn give_back() {
    trim();
    unmap_text();
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: it takes the allocator's own locks, frees nothing that is in use, and may be called by any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Gives back what a burst of starts or ends of containers has left, whenever one is over, until `stop`.
pub async fn give_back_after_bursts(followed: Arc<Followed>, stop: CancellationToken) {
    let mut changes = followed.changes();
    while stop.run_until_cancelled(changes.settled()).await.is_some() {
        if let Err(error) = tokio::task::spawn_blocking(give_back).await {
            tracing::error!(%error, "memory is not given back");
        }
    }
}

/// Takes the program's text out of the process's memory; what is needed of it comes back from the page cache, 64 KiB at a
/// fault. Mapped, all that the start alone has run counts as in use, and is the last that the kernel would drop.
#[allow(unsafe_code)]
fn unmap_text() {
    let here = unmap_text as fn() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(text) = maps.lines().filter_map(text_mapped).find(|text| text.contains(&here)) else { return };
    // SAFETY: a private mapping of a file that is not writable holds nothing but the file's bytes, which is what the
    // kernel puts there again at the next access.
    let done = unsafe { madvise(text.start as *mut _, text.len(), Advice::LinuxDontNeed) };
    if let Err(error) = done {
        tracing::debug!(%error, "the program's text stays mapped");
    }
}

/// The addresses of a line of `/proc/self/maps` (proc_pid_maps(5)) that maps text: read and executed, never written.
fn text_mapped(line: &str) -> Option<Range<usize>> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-').filter(|_| rest.starts_with("r-xp "))?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Other libraries have limits of their own.
#[cfg(not(target_env = "gnu"))]
pub fn keep_little() {}

/// Other libraries give it back by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_is_executed_and_never_written() {
        let text = "004c7000-00f1c000 r-xp 002c6000 fe:00 10021222                           /usr/bin/limpet";
        assert_eq!(text_mapped(text), Some(0x4c7000..0xf1c000));
        for other in [
            "00200000-004c7000 r--p 00000000 fe:00 10021222                           /usr/bin/limpet",
            "00f21000-00f29000 rw-p 00d1e000 fe:00 10021222                           /usr/bin/limpet",
            "00f29000-00f2f000 rwxp 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(text_mapped(other), None, "{other}");
        }
    }

    #[test]
    fn text_is_out_of_memory_and_comes_back() {
        let resident = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            let here = unmap_text as fn() as usize;
            let mut of_text =
                smaps.lines().skip_while(|line| !text_mapped(line).is_some_and(|text| text.contains(&here)));
            let of_text = of_text.find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default();
            of_text.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default()
        };
        // Other tests run, and bring back what they need, meanwhile.
        let fell = (0..100).any(|_| {
            let before = resident();
            unmap_text();
            resident() < before
        });
        assert!(fell, "{} kB", resident());
    }
}
