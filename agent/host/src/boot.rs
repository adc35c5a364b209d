//! Identifies this boot of the node: a record with this id is valid until the next boot.

use std::io;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's boot id.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    std::fs::read_to_string(BOOT_ID).map(|text| text.trim().to_owned())
}
