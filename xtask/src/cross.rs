//! The agent for the other architectures nodes have: compiled as far as clippy goes, by `cargo xtask lint`.
//!
//! ring's build script compiles C for the target, so a C compiler for it is needed, though nothing is linked. clang compiles
//! for all of them, and ring's sources then need no header of a C library.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use limpet_tests::tools;

use crate::apt::{self, Machine};
use crate::architecture::{self, Architecture};
use crate::cargo;

/// The architectures that are checked besides this machine's own.
const CHECKED: [Architecture; 3] = [Architecture::Aarch64, Architecture::Armv7, Architecture::Riscv64];
/// The architecture on which the agent is checked without its optional features, tests and benches included: such a
/// check shares nothing with the others, so each further one would cost as much as a whole architecture.
const WITHOUT_FEATURES: Architecture = Architecture::Riscv64;
/// How the names of clang's parts, and of the libraries it is linked with, begin.
const CLANG_PACKAGES: [&str; 9] =
    ["clang-", "libclang", "libllvm", "libz3-", "libedit", "libxml2", "libicu", "libbsd", "libmd"];
/// The flags by which ring builds without the headers of a C library.
const FLAGS: &str = "-nostdlibinc -DRING_CORE_NOSTDLIBINC=1";

/// Installs Rust's library for the targets, and clang. Returns why that cannot be done here.
pub(crate) fn obstacle() -> Option<String> {
    architecture::add_rust_targets(&CHECKED.map(Architecture::target))
        .and_then(|()| clang().map(drop))
        .err()
        .map(|error| format!("{error:#}"))
}

/// Compiles the agent for each target.
pub(crate) fn check() -> Result<()> {
    let clang = clang()?;
    let mut whole = cargo::command(&["clippy", "--quiet", "--package", "limpet"]);
    for architecture in CHECKED.into_iter().filter(|architecture| *architecture != WITHOUT_FEATURES) {
        target(&mut whole, architecture, &clang);
    }
    cargo::run(whole.args(["--", "--deny", "warnings"]))?;
    let mut without =
        cargo::command(&["clippy", "--quiet", "--package", "limpet", "--no-default-features", "--all-targets"]);
    target(&mut without, WITHOUT_FEATURES, &clang);
    cargo::run(without.args(["--", "--deny", "warnings"]))
}

/// Adds the architecture to those that the command compiles for, with `clang` as the compiler of C.
fn target(command: &mut Command, architecture: Architecture, clang: &Path) {
    let target = architecture.target();
    let key = target.replace('-', "_");
    command.args(["--target", target]).env(format!("CC_{key}"), clang);
    command.env(format!("CFLAGS_{key}"), FLAGS).env(format!("AR_{key}"), "ar");
}

/// The machine's clang, or else the one in the cache, where it is unpacked if it is missing.
fn clang() -> Result<PathBuf> {
    if let Some(clang) = tools::on_path("clang") {
        return Ok(clang);
    }
    let directory = tools::cache_dir().join("clang");
    let script = directory.join("clang");
    if !script.is_file() {
        fs::remove_dir_all(&directory).ok();
        let machine = Machine::read(Path::new("/"))?;
        apt::unpack_dependencies(&machine, &machine.codename, "clang", &CLANG_PACKAGES, &directory)?;
        write_script(&directory, &script)?;
    }
    Ok(script)
}

/// Writes a script that runs the unpacked clang with the unpacked libraries, which no other program should find.
fn write_script(directory: &Path, script: &Path) -> Result<()> {
    let library = directory.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let programs = fs::read_dir(directory.join("usr/bin")).context("clang's programs")?;
    let mut names: Vec<_> = programs.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.strip_prefix("clang-").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())));
    let clang = directory.join("usr/bin").join(names.first().context("the packages have no clang")?);
    let text = format!("#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n", library.display(), clang.display());
    fs::write(script, text).with_context(|| format!("{}", script.display()))?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).with_context(|| format!("{}", script.display()))
}
