//! Memory that was needed once, such as for the kernel's types, is given back to the kernel: glibc keeps it otherwise.

/// Gives back what is free. Takes some milliseconds; for after a burst, not for every day.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back() {
    // SAFETY: it takes the allocator's own locks, frees nothing that is in use, and may be called by any thread.
    unsafe { nix::libc::malloc_trim(0) };
}

/// Other libraries give it back by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
