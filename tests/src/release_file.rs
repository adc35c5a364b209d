//! Files of releases to upgrade to: versions that differ in their size, and tarballs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::agent::SHIM;
use crate::process;

/// A copy of an executable without debug information.
pub fn strip(from: &Path, to: &Path) -> Result<()> {
    process::checked(Command::new("strip").arg("-o").arg(to).arg(from)).map(drop)
}

/// A copy of `from` with `more` bytes at the end, which no loader reads: another version, by its size.
pub fn version(from: &Path, to: &Path, more: usize) -> Result<PathBuf> {
    let mut bytes = fs::read(from).with_context(|| from.display().to_string())?;
    bytes.extend(std::iter::repeat_n(b'x', more));
    fs::write(to, bytes).with_context(|| to.display().to_string())?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(to.to_owned())
}

/// The tarball of a release with this agent and this shim.
pub fn tarball(program: &Path, shim: &Path, to: &Path) -> Result<PathBuf> {
    let file = fs::File::create(to).with_context(|| to.display().to_string())?;
    let mut builder = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
    builder.append_path_with_name(program, "limpet-9-test/usr/bin/limpet")?;
    builder.append_path_with_name(shim, format!("limpet-9-test/usr/bin/{}", SHIM.0))?;
    builder.into_inner()?.finish()?;
    Ok(to.to_owned())
}
