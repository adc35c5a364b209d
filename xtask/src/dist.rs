//! `cargo xtask dist`: the executables for nodes: the agent, and limpet's shim beside it. Static, so that they run on any
//! Linux of this machine's architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{agent, process};

use crate::{cargo, setup};

/// The first glibc that a static executable can resolve names with: files and DNS are part of it.
const MIN_GLIBC: (u32, u32) = (2, 34);

/// Not relocated either: every container's logger is a process of it, and relocation would dirty a MiB in each. Tried
/// without gain: identical functions folded (0.9 %). Names of this kind distinguish the instances of a generic function, of
/// which an idle agent runs few.
const FLAGS: [&str; 6] =
    ["-C", "target-feature=+crt-static", "-C", "relocation-model=static", "-C", "symbol-mangling-version=v0"];
/// Has the linker leave out the tables for unwinding, a twelfth of the file: nothing unwinds, a panic aborts. The
/// compiler makes them whatever its options are, for the debug information in the standard library.
const UNWIND_TABLES_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/without_unwind_tables.ld");

/// Has it place what an idle agent runs side by side, at the beginning of the text: see [`crate::idle_text`].
pub(crate) const IDLE_TEXT_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/idle_text.ld");

/// Which of the two to build.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The one tests use: linked in the same way, but hardly optimised. Takes a minute.
    #[arg(long)]
    for_tests: bool,
}

/// Builds it, and returns where it is.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    if arguments.for_tests { for_tests() } else { build() }
}

/// The executable for tests.
pub(crate) fn for_tests() -> Result<PathBuf> {
    built_with("dist-test")
}

/// The executable for nodes.
pub(crate) fn build() -> Result<PathBuf> {
    built_with("dist")
}

/// The executable for nodes with the names of its functions. Has the linker write what comes from where to `map`.
pub(crate) fn with_symbols(map: &Path) -> Result<PathBuf> {
    let mut command = command("dist")?;
    command.env("CARGO_PROFILE_DIST_STRIP", "none");
    linked(&mut command, &[&format!("-Map={}", map.display())])
}

fn built_with(profile: &str) -> Result<PathBuf> {
    let agent = linked(&mut command(profile)?, &[])?;
    let (name, package) = agent::SHIM;
    let flags = linker_flags(&[&format!("-T,{UNWIND_TABLES_SCRIPT}"), "--no-eh-frame-hdr"]);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let shim = cargo::executable_linked(&mut command_for(profile, package, name)?, name, &flags)?;
    ensure!(shim.parent() == agent.parent(), "{} is not beside {}", shim.display(), agent.display());
    Ok(agent)
}

fn command(profile: &str) -> Result<Command> {
    command_for(profile, "limpet", "limpet")
}

fn command_for(profile: &str, package: &str, bin: &str) -> Result<Command> {
    let (major, minor) = glibc()?;
    let least = MIN_GLIBC;
    ensure!(
        (major, minor) >= least,
        "glibc {major}.{minor} is too old to link a static executable that resolves names; build on a system with {}.{}",
        least.0,
        least.1
    );
    setup::for_building()?;
    let target = host()?;
    let flags = format!("target.{target}.rustflags={FLAGS:?}");
    let mut command = cargo::command(&["rustc", "--profile", profile, "--package", package, "--bin", bin]);
    // RUSTFLAGS would be taken instead of those flags.
    command.args(["--target", &target, "--config", &flags]).env_remove("RUSTFLAGS");
    Ok(command)
}

/// Builds it, with further options of the linker.
fn linked(command: &mut Command, options: &[&str]) -> Result<PathBuf> {
    let (without, idle) = (format!("-T,{UNWIND_TABLES_SCRIPT}"), format!("-T,{IDLE_TEXT_SCRIPT}"));
    let options: Vec<_> = [&without, &idle, "--no-eh-frame-hdr"].into_iter().chain(options.iter().copied()).collect();
    let flags = linker_flags(&options);
    cargo::executable_linked(command, "limpet", &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn linker_flags(options: &[&str]) -> Vec<String> {
    options.iter().flat_map(|option| ["-C".to_owned(), format!("link-arg=-Wl,{option}")]).collect()
}

/// The target this machine's compiler builds for by itself; named, it keeps the flags from build scripts.
fn host() -> Result<String> {
    let output = process::checked(Command::new("rustc").arg("-vV"))?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV prints no host")?.to_owned())
}

/// The version of the libc that is linked.
fn glibc() -> Result<(u32, u32)> {
    let output = process::checked(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let version = output.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let (major, minor) = version.with_context(|| format!("getconf GNU_LIBC_VERSION prints {output}"))?;
    Ok((major.parse()?, minor.parse()?))
}
