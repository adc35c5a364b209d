//! Memory that was needed once, such as for loading BPF programs or starting many pods, is given back to the kernel: glibc
//! keeps it otherwise.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::followed::Followed;

#[cfg(target_env = "gnu")]
use nix::libc;

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

/// Gives back what is free. Takes some milliseconds; for after a burst, not for every day.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back() {
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

/// Other libraries have limits of their own.
#[cfg(not(target_env = "gnu"))]
pub fn keep_little() {}

/// Other libraries give it back by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
