//! Detached signatures: Ed25519 in minisign's format, by minisign itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::tools;

use super::{VERSION, file_name};
use crate::apt;

/// Signs `file` with the secret key in the file `key`; returns the signature's file, `<file>.minisig`.
pub(super) fn sign(key: &Path, file: &Path) -> Result<PathBuf> {
    if tools::on_path("minisign").is_none() {
        apt::install(&["minisign"])?;
    }
    let signature = file.with_file_name(format!("{}.minisig", file_name(file)));
    // The comment is signed, too, so that a renamed file does not pass for another one.
    let comment = format!("limpet {VERSION} file:{}", file_name(file));
    let mut command = Command::new("minisign");
    command.args(["-S", "-t", &comment, "-s"]).arg(key).arg("-m").arg(file).arg("-x").arg(&signature);
    // The output is not captured, because minisign asks for the key's password.
    let status = command.status().context("minisign")?;
    ensure!(status.success(), "minisign cannot sign {} with {}: {status}", file.display(), key.display());
    Ok(signature)
}
