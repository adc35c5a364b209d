//! How host names become addresses: by `/etc/hosts` and DNS, as libc does it. `/etc/resolv.conf` is read again when it has
//! changed, so a box that boots without a network needs no restart of the agent.
//!
//! A static executable must not let libc load what `/etc/nsswitch.conf` names: those libraries are of the box's own libc,
//! of any age. Files and DNS are built in (glibc 2.34), and are all it is allowed. What systemd-resolved knows comes by
//! DNS, too: `/etc/resolv.conf` points to it.

/// Binds a static executable's resolver to what is built into it; others use what the box has configured. For the start.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[allow(unsafe_code)]
pub fn use_built_in() {
    unsafe extern "C" {
        /// `<nss.h>`: the services of a database, in place of the configured ones.
        fn __nss_configure_lookup(database: *const std::ffi::c_char, services: *const std::ffi::c_char) -> i32;
    }
    // SAFETY: both strings end with a NUL and live for ever; the declaration is that of `<nss.h>`.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

/// Nothing to do: the libraries are those of the libc that loads them.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn use_built_in() {}
