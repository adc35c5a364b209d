//! A name for this run of the kernel: what is written down of it counts until the next start of the node.

use std::io;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The name.
///
/// # Errors
/// `/proc` is not mounted.
pub(crate) fn boot_id() -> io::Result<String> {
    std::fs::read_to_string(BOOT_ID).map(|text| text.trim().to_owned())
}
