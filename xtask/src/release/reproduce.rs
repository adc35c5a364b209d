//! `cargo xtask release --reproduce`: the same commit, built again in another directory, gives the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::process;

use super::{Release, file_name};
use crate::architecture::Architecture;
use crate::cargo;
use crate::dist::Profile;

/// Clones the last commit, makes the same files from the clone with another target directory, and compares each file of
/// `made`.
pub(super) fn run(release: &Release, architectures: &[Architecture], profile: Profile, made: &[PathBuf]) -> Result<()> {
    let changes = process::checked(
        Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]).current_dir(workspace_dir()),
    )?;
    ensure!(changes.is_empty(), "commit first: what is built again is the last commit\n{changes}");
    let elsewhere = release.work.join("elsewhere");
    let source = elsewhere.join("source of another name");
    process::checked(
        Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).args([&workspace_dir(), &source]),
    )?;
    let mut command = cargo::command(&["xtask", "release"]);
    for architecture in architectures {
        command.args(["--arch", architecture.name()]);
    }
    if profile == Profile::DistTest {
        command.arg("--for-tests");
    }
    if !release.with_security_updates {
        command.arg("--no-security-updates");
    }
    let out = elsewhere.join("out");
    command.arg("--out").arg(&out).current_dir(&source);
    command.env("CARGO_TARGET_DIR", elsewhere.join("target")).env("SOURCE_DATE_EPOCH", release.seconds().to_string());
    cargo::run(&mut command)?;
    let different: Vec<_> =
        made.iter().filter(|file| !are_equal(file, &out.join(file_name(file)))).map(|file| file_name(file)).collect();
    ensure!(different.is_empty(), "built in another directory these differ: {}", different.join(", "));
    fs::remove_dir_all(&elsewhere).with_context(|| format!("{}", elsewhere.display()))
}

fn are_equal(left: &Path, other: &Path) -> bool {
    matches!((fs::read(left), fs::read(other)), (Ok(left), Ok(other)) if left == other)
}
