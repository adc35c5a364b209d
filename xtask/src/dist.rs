//! `cargo xtask dist`: the executable for nodes. Static, so that it runs on any Linux of this machine's architecture.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::process;

use crate::{cargo, setup};

/// The first glibc that a static executable can resolve names with: files and DNS are part of it.
const GLIBC_LEAST: (u32, u32) = (2, 34);

/// Not relocated either: every container's logger is a process of it, and relocation would dirty a MiB in each. Tried
/// without gain: identical functions folded (0.9 %).
const FLAGS: [&str; 4] = ["-C", "target-feature=+crt-static", "-C", "relocation-model=static"];
/// Has the linker leave out the tables for unwinding, a twelfth of the file: nothing unwinds, a panic aborts. The compiler makes
/// them whatever its options are, for the debug information in the standard library.
const LINKED_WITHOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/without_unwind_tables.ld");

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

fn built_with(profile: &str) -> Result<PathBuf> {
    let (major, minor) = glibc()?;
    let least = GLIBC_LEAST;
    ensure!(
        (major, minor) >= least,
        "glibc {major}.{minor} is too old to link a static executable that resolves names; build on a system with {}.{}",
        least.0,
        least.1
    );
    setup::for_building()?;
    let target = host()?;
    let flags = format!("target.{target}.rustflags={FLAGS:?}");
    let mut command = cargo::command(&["rustc", "--profile", profile, "--package", "limpet", "--bin", "limpet"]);
    // RUSTFLAGS would be taken instead of those flags.
    command.args(["--target", &target, "--config", &flags]).env_remove("RUSTFLAGS");
    let without = format!("link-arg=-Wl,-T,{LINKED_WITHOUT}");
    cargo::executable_linked(&mut command, "limpet", &["-C", &without, "-C", "link-arg=-Wl,--no-eh-frame-hdr"])
}

/// The target this machine's compiler builds for by itself; named, it keeps the flags from build scripts.
fn host() -> Result<String> {
    let said = process::checked(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// The version of the libc that is linked.
fn glibc() -> Result<(u32, u32)> {
    let said = process::checked(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let version = said.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let (major, minor) = version.with_context(|| format!("getconf GNU_LIBC_VERSION says {said}"))?;
    Ok((major.parse()?, minor.parse()?))
}
