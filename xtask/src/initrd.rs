//! Initrds of emulated machines: the archive of a directory, as the kernel unpacks it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{process, tools};

/// Writes everything below `root` to `initrd`.
///
/// # Errors
/// There is no busybox, whose cpio makes the archive, or a file cannot be read.
pub(crate) fn write(root: &Path, initrd: &Path) -> Result<()> {
    let busybox = tools::busybox().context("no busybox; run: cargo xtask setup")?;
    let listed = process::checked(Command::new("find").args([".", "-mindepth", "1"]).current_dir(root))?;
    let mut command = Command::new(busybox);
    command.args(["cpio", "-o", "-H", "newc"]).current_dir(root);
    let output = process::run(&mut command, listed.as_bytes())?;
    ensure!(output.status.success(), "cpio: {}", String::from_utf8_lossy(&output.stderr));
    fs::write(initrd, output.stdout).with_context(|| initrd.display().to_string())
}
