//! Returns free heap memory to the kernel after a burst, such as loading BPF programs or starting many pods: glibc holds
//! on to it otherwise.

use std::sync::Arc;

#[cfg(target_env = "gnu")]
use nix::libc;
use tokio_util::sync::CancellationToken;

use super::followed::Followed;

/// Bytes from which an allocation gets a mapping of its own, which `free` unmaps. More than the chunks of an image pull.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 512 << 10;
/// Bytes that may stay free at the top of the heap.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: libc::c_int = 128 << 10;

/// Bytes of address space of a thread's stack, Linux' usual. glibc keeps the stacks of threads that have ended for later ones,
/// up to 40 MiB of them, each with some 16 KiB that were used: with this size 5 of them, with std's own of 2 MiB 20.
pub const THREAD_STACK: usize = 8 << 20;

/// Limits the free memory that the allocator retains. By default it raises both limits to the size of the last block freed,
/// so loading BPF programs once cost 10 MiB forever; and it has an arena for each of eight threads, where one thread does
/// nearly all the work. Call it at the start, before the second thread.
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

/// Returns free heap memory to the kernel. Takes some milliseconds: call it after a burst, not regularly.
pub fn release_free_memory() {
    trim();
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks, frees nothing that is in use, and may be called by any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Returns free heap memory to the kernel after each burst of container starts or exits, until `stop`.
pub async fn release_after_bursts(followed: Arc<Followed>, stop: CancellationToken) {
    let mut changes = followed.changes();
    while stop.run_until_cancelled(changes.settled()).await.is_some() {
        if let Err(error) = tokio::task::spawn_blocking(release_free_memory).await {
            tracing::error!(%error, "returning free memory to the kernel failed");
        }
    }
}

/// Other libraries have limits of their own.
#[cfg(not(target_env = "gnu"))]
pub fn limit_free_memory() {}

/// Other libraries return free memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}
