//! `cargo xtask release --check`: the packages meet the rules of the distributions, and run.
//!
//! lintian and rpmlint without an error; the executable, emulated where the processor is another one, prints its version,
//! accepts a manifest and examines the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::{process, tools};

use super::{Release, VERSION, stage};
use crate::apt::{self, Machine};
use crate::architecture::Architecture;
use crate::dist;

/// Packages that the checks need, and the program by which the presence of each is known.
const TOOLS: [(&str, &str); 3] = [("lintian", "lintian"), ("rpmlint", "rpmlint"), ("mandoc", "mandoc")];

const MANIFEST: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: web, image: nginx:1}]\n";

/// Checks what was made for one architecture.
pub(super) fn run(release: &Release, architecture: Architecture, made: &[PathBuf]) -> Result<()> {
    let missing = TOOLS.iter().filter(|(_, program)| tools::on_path(program).is_none());
    let missing: Vec<_> = missing.map(|(package, _)| *package).collect();
    if !missing.is_empty() {
        apt::install(&missing)?;
    }
    let tree = release.work.join(architecture.name()).join("tree");
    for file in made.iter().filter(|file| has_extension(file, "deb")) {
        lintian(file)?;
    }
    for file in made.iter().filter(|file| has_extension(file, "rpm")) {
        rpmlint(file)?;
    }
    pages(&tree)?;
    executable(architecture, &tree.join("usr/bin/limpet"))
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|is| is == extension)
}

fn lintian(package: &Path) -> Result<()> {
    process::checked(Command::new("lintian").args(["--fail-on", "error", "--allow-root"]).arg(package)).map(drop)
}

fn rpmlint(package: &Path) -> Result<()> {
    let mut command = Command::new("rpmlint");
    command.arg("--config").arg(workspace_dir().join("deploy/rpm/rpmlint.toml"));
    process::checked(command.arg(package)).map(drop)
}

/// Checks that mandoc reads every manual page without an error.
fn pages(tree: &Path) -> Result<()> {
    for section in ["man1", "man5"] {
        let directory = tree.join("usr/share/man").join(section);
        for entry in fs::read_dir(&directory).with_context(|| format!("{}", directory.display()))? {
            process::checked(Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(entry?.path()))?;
        }
    }
    Ok(())
}

/// Checks that the executable runs.
fn executable(architecture: Architecture, program: &Path) -> Result<()> {
    let version = process::checked(command(architecture, program)?.arg("--version"))?;
    ensure!(version.trim() == format!("limpet {VERSION}"), "{} prints {version}", program.display());
    let manifest = std::env::temp_dir().join(format!("limpet-release-{}.yaml", std::process::id()));
    stage::write(&manifest, MANIFEST.as_bytes(), 0o600)?;
    let accepted = process::checked(command(architecture, program)?.arg("validate").arg(&manifest));
    fs::remove_file(&manifest).ok();
    accepted?;
    // This machine need not be able to run pods. It only matters that everything is examined.
    let report = process::run(command(architecture, program)?.args(["doctor", "-o", "json"]), b"")?;
    let text = String::from_utf8_lossy(&report.stdout);
    let document: serde_json::Value = serde_json::from_str(&text).with_context(|| {
        format!("{} doctor prints {text}{}", program.display(), String::from_utf8_lossy(&report.stderr))
    })?;
    if document.as_array().is_none_or(Vec::is_empty) && document.as_object().is_none_or(serde_json::Map::is_empty) {
        bail!("{} doctor reports nothing", program.display());
    }
    Ok(())
}

/// Runs `program`, under emulation where this machine has another processor.
fn command(architecture: Architecture, program: &Path) -> Result<Command> {
    if architecture.target() == dist::host()? {
        return Ok(Command::new(program));
    }
    let mut command = Command::new(emulator(architecture)?);
    command.arg(program);
    Ok(command)
}

/// The path of QEMU's program: the machine's own, or one that is unpacked beside it, because an installed one would
/// register itself for all programs.
fn emulator(architecture: Architecture) -> Result<PathBuf> {
    let name = architecture.emulator();
    if let Some(emulator) = tools::emulator(name) {
        return Ok(emulator);
    }
    let machine = Machine::read(Path::new("/"))?;
    apt::unpack_beside(&machine, std::slice::from_ref(&machine.codename), &["qemu-user-static"])?;
    tools::emulator(name).with_context(|| format!("qemu-user-static has no {name}"))
}
