//! `cargo xtask dist`: the executables for nodes: the agent, and limpet's shim beside it. Static, so that they run on any
//! Linux of their architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::{self, workspace_dir};
use limpet_tests::process;

use crate::architecture::{self, Architecture};
use crate::{cargo, setup};

/// The first glibc whose static executables can resolve names: files and DNS are part of it.
const MIN_GLIBC: (u32, u32) = (2, 34);

/// The executable is not relocated either: every container's logger is a process of it, and relocation would dirty a
/// MiB in each. Folding identical functions was tried without gain (0.9 %). Names of this kind distinguish the
/// instances of a generic function, of which an idle agent runs few.
const FLAGS: [&str; 6] =
    ["-C", "target-feature=+crt-static", "-C", "relocation-model=static", "-C", "symbol-mangling-version=v0"];
/// The script that has the linker leave out the tables for unwinding, a twelfth of the file. Nothing unwinds, because a
/// panic aborts. The compiler makes them whatever its options are, for the debug information in the standard library.
const UNWIND_TABLES_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/without_unwind_tables.ld");

/// The script that has the linker place the code of an idle agent side by side, at the beginning of the text: see
/// [`crate::idle_text`].
pub(crate) const IDLE_TEXT_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/idle_text.ld");

/// The names of the agent's executable and package.
const AGENT: (&str, &str) = ("limpet", "limpet");

/// The linker scripts. armv7 has only the first, because glibc passes a system call's number in the register that the
/// linker uses for jumps beyond 16 MiB. Its functions have to stay beside each other; otherwise the first `statx` ends
/// in SIGILL.
const SCRIPTS: [&str; 2] = [UNWIND_TABLES_SCRIPT, IDLE_TEXT_SCRIPT];

/// What to build.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The one tests use: linked in the same way, but hardly optimised. Takes a minute.
    #[arg(long)]
    for_tests: bool,
    /// The architecture of the nodes; without it this machine's own.
    #[arg(long, value_name = "ARCHITECTURE")]
    arch: Option<Architecture>,
}

/// How much the compiler optimises: the profiles of `Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For nodes.
    Dist,
    /// For tests.
    DistTest,
}

impl Profile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dist => "dist",
            Self::DistTest => "dist-test",
        }
    }
}

/// Builds them, and returns where the agent is.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    let profile = if arguments.for_tests { Profile::DistTest } else { Profile::Dist };
    match arguments.arch {
        None if profile == Profile::DistTest => for_tests(),
        None => build(),
        Some(architecture) => build_for(architecture, profile),
    }
}

/// The executable for tests. It has the names of this machine's directories: by other names each directory of the
/// sources would have all dependencies built anew.
pub(crate) fn for_tests() -> Result<PathBuf> {
    built_with(Profile::DistTest, &[])
}

/// The executable for nodes.
pub(crate) fn build() -> Result<PathBuf> {
    built_with(Profile::Dist, &renamed_directories()?)
}

/// The executable for nodes with the names of its functions. Has the linker write what comes from where to `map`.
pub(crate) fn with_symbols(map: &Path) -> Result<PathBuf> {
    let mut command = command_for(Profile::Dist, &host()?, AGENT, &renamed_directories()?)?;
    command.env("CARGO_PROFILE_DIST_STRIP", "none");
    let map = format!("-Wl,-Map={}", map.display());
    linked(&mut command, AGENT.0, &SCRIPTS, &[map])
}

/// Builds the executables for an architecture, whose compiler and libraries are installed if they are missing. Returns
/// the path of the agent.
pub(crate) fn build_for(architecture: Architecture, profile: Profile) -> Result<PathBuf> {
    let target = architecture.target();
    if target == host()? {
        return built_with(profile, &renamed_directories()?);
    }
    architecture::install_toolchains(&[architecture])?;
    let (gcc, key) = (architecture.program("gcc"), target.replace('-', "_"));
    let scripts = if architecture == Architecture::Armv7 { &SCRIPTS[..1] } else { &SCRIPTS };
    let renamed = renamed_directories()?;
    let build = |executable: (&str, &str), scripts: &[&str]| {
        let mut command = command_for(profile, target, executable, &renamed)?;
        command.env(format!("CC_{key}"), &gcc).env(format!("AR_{key}"), architecture.program("ar"));
        command.args(["--config", &format!("target.{target}.linker={gcc:?}")]);
        linked(&mut command, executable.0, scripts, &lld_flags()?)
    };
    beside_each_other(build(AGENT, scripts)?, &build(agent::SHIM, &SCRIPTS[..1])?)
}

/// Builds the executables for this machine, with these names of its directories.
fn built_with(profile: Profile, renamed: &[RenamedDirectory]) -> Result<PathBuf> {
    let build = |executable: (&str, &str), scripts: &[&str]| {
        linked(&mut command_for(profile, &host()?, executable, renamed)?, executable.0, scripts, &[])
    };
    beside_each_other(build(AGENT, &SCRIPTS)?, &build(agent::SHIM, &SCRIPTS[..1])?)
}

fn beside_each_other(agent: PathBuf, shim: &Path) -> Result<PathBuf> {
    ensure!(shim.parent() == agent.parent(), "{} is not beside {}", shim.display(), agent.display());
    Ok(agent)
}

fn command_for(
    profile: Profile,
    target: &str,
    (name, package): (&str, &str),
    renamed: &[RenamedDirectory],
) -> Result<Command> {
    let (major, minor) = glibc()?;
    let least = MIN_GLIBC;
    ensure!(
        (major, minor) >= least,
        "glibc {major}.{minor} is too old to link a static executable that resolves names; build on a system with {}.{}",
        least.0,
        least.1
    );
    setup::for_building()?;
    let remaps = renamed.iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    let flags = format!(
        "target.{target}.rustflags={:?}",
        FLAGS.map(str::to_owned).into_iter().chain(remaps).collect::<Vec<_>>()
    );
    let c_flags: Vec<_> =
        renamed.iter().map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display())).collect();
    let mut command = cargo::command(&["rustc", "--profile", profile.name(), "--package", package, "--bin", name]);
    // RUSTFLAGS would replace those flags.
    command.args(["--target", target, "--config", &flags]).env_remove("RUSTFLAGS");
    command.env(format!("CFLAGS_{}", target.replace('-', "_")), c_flags.join(" "));
    Ok(command)
}

/// A directory of this machine, and its name in the executable.
type RenamedDirectory = (PathBuf, &'static str);

/// The directories of this machine, and their names in the executable, so that builds in different ones are equal.
fn renamed_directories() -> Result<[RenamedDirectory; 3]> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    // If several apply, the compiler uses the last.
    Ok([
        (workspace_dir(), "/limpet"),
        (home.context("neither CARGO_HOME nor HOME is set")?, "/cargo"),
        (cargo::target_dir(), "/target"),
    ])
}

/// Builds an executable with further arguments for the linker's driver.
fn linked(command: &mut Command, name: &str, scripts: &[&str], arguments: &[String]) -> Result<PathBuf> {
    let scripts = scripts.iter().map(|script| format!("-Wl,-T,{script}"));
    let arguments = arguments.iter().cloned().chain(scripts).chain(["-Wl,--no-eh-frame-hdr".to_owned()]);
    let flags: Vec<_> = arguments.flat_map(|argument| ["-C".to_owned(), format!("link-arg={argument}")]).collect();
    cargo::executable_linked(command, name, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Has gcc use the linker that comes with the compiler, as it does for x86-64 by itself: the scripts are for LLD.
fn lld_flags() -> Result<Vec<String>> {
    let programs = rust_programs()?.join("gcc-ld");
    Ok(vec!["-fuse-ld=lld".to_owned(), format!("-B{}", programs.display())])
}

/// Where the compiler's own programs are.
fn rust_programs() -> Result<PathBuf> {
    Ok(sysroot()?.join("lib/rustlib").join(host()?).join("bin"))
}

fn sysroot() -> Result<PathBuf> {
    let sysroot = process::checked(Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace_dir()))?;
    Ok(PathBuf::from(sysroot.trim()))
}

/// The compiler's objcopy, which knows all architectures.
pub(crate) fn objcopy() -> Result<Command> {
    let mut command = Command::new(rust_programs()?.join("rust-objcopy"));
    // objcopy does not find the compiler's library by itself.
    command.env("LD_LIBRARY_PATH", sysroot()?.join("lib"));
    Ok(command)
}

/// The target this machine's compiler builds for by itself; named, it keeps the flags from build scripts.
pub(crate) fn host() -> Result<String> {
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
