//! Host name resolution with `/etc/hosts` and DNS, as in libc. `/etc/resolv.conf` is reread when it changes, so a
//! machine that boots without a network needs no restart of the agent.
//!
//! A static executable must not let libc load the services in `/etc/nsswitch.conf`: those libraries belong to the
//! machine's own libc, of any version. Files and DNS are built in (glibc 2.34) and the only ones allowed. Names known
//! to systemd-resolved are found by DNS, too: `/etc/resolv.conf` points to it.

/// Restricts a static executable's resolver to its built-in services; others use the configured ones. Call at the
/// start.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[allow(unsafe_code)]
pub fn use_built_in() {
    unsafe extern "C" {
        /// `<nss.h>`: sets the services of a database, instead of the configured ones.
        fn __nss_configure_lookup(database: *const std::ffi::c_char, services: *const std::ffi::c_char) -> i32;
    }
    // SAFETY: both strings end with a NUL and live for ever; the declaration is that of `<nss.h>`.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

/// Does nothing: the libraries match the libc that loads them.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn use_built_in() {}
