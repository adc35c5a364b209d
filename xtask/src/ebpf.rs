//! `cargo xtask build-ebpf`: the toolchain of the BPF programs, and the object that is committed beside them.
//!
//! The programs need a nightly compiler, the source of `core`, and bpf-linker built against that compiler's own LLVM. All
//! but the compiler itself comes into the cache. The versions are recorded beside the object: with the same ones every
//! checkout gives the same bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use limpet_tests::agent::workspace_dir;
use limpet_tests::{process, tools};

use crate::apt::{self, Machine};
use crate::cargo;

const OBJECT: &str = "agent-ebpf/limpet.bpf.o";
const RECORD: &str = "agent-ebpf/limpet.bpf.toolchain";
const TARGET: &str = "bpfel-unknown-none";
const LINKER: &str = "0.13.0";
/// The suite whose `rust-src` is as new as a nightly compiler.
const SOURCE_SUITE: &str = "unstable";

/// The programs and sources that build the object.
struct Toolchain {
    /// The compiler's version.
    compiler: String,
    /// `22`, of `LLVM version: 22.1.4`.
    llvm: String,
    /// The compiler's directory.
    sysroot: PathBuf,
    /// The source of `core`.
    library: PathBuf,
}

impl Toolchain {
    /// The toolchain on this machine; `None` if the compiler or the source of `core` is missing.
    fn find() -> Option<Self> {
        let output = process::checked(rustup().args(["rustc", "-vV"])).ok()?;
        let field = |key: &str| output.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        let llvm = field("LLVM version: ")?;
        let sysroot = PathBuf::from(process::checked(rustup().args(["rustc", "--print", "sysroot"])).ok()?.trim());
        let of_sysroot = sysroot.join("lib/rustlib/src/rust/library");
        Some(Self {
            compiler: output.lines().next()?.to_owned(),
            llvm: llvm.split('.').next()?.to_owned(),
            library: Some(of_sysroot).filter(|path| path.is_dir()).or_else(tools::rust_library)?,
            sysroot,
        })
    }

    /// The record that is kept beside the object.
    fn record(&self) -> String {
        let source = self.library.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        format!("{}\ncore of {source}\nbpf-linker {LINKER}\n", self.compiler)
    }

    /// The directory of bpf-linker for this compiler, which may not be built yet.
    fn linker_root(&self) -> PathBuf {
        tools::cache_dir().join(format!("bpf-linker-{LINKER}-llvm-{}", self.llvm))
    }

    fn has_linker(&self) -> bool {
        self.linker_root().join("bin/bpf-linker").is_file()
    }

    /// Builds bpf-linker against the LLVM that this compiler has (about four minutes).
    fn build_linker(&self) -> Result<()> {
        let root = self.linker_root();
        let lib = self.sysroot.join("lib");
        let llvm = fs::read_dir(&lib)?.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()));
        let llvm = llvm.filter(|name| name.starts_with(&format!("libLLVM.so.{}", self.llvm))).min();
        let llvm = llvm.with_context(|| format!("no libLLVM.so.{} in {}", self.llvm, lib.display()))?;
        let prefix = root.join("llvm");
        fs::create_dir_all(prefix.join("lib"))?;
        let link = prefix.join("lib/libLLVM.so");
        fs::remove_file(&link).ok();
        symlink(lib.join(llvm), &link)?;
        let flags = format!("-L native={} -C link-arg=-Wl,-rpath,{}", prefix.join("lib").display(), lib.display());
        let feature = format!("llvm-{}", self.llvm);
        apt::say(&format!("building bpf-linker into {}", root.display()), || {
            let profile = [("LTO", "off"), ("CODEGEN_UNITS", "16"), ("OPT_LEVEL", "1")];
            let mut command = cargo::command(&["install", "--quiet", "--locked", "bpf-linker", "--version", LINKER]);
            command.args(["--no-default-features", "--features", &feature, "--root"]).arg(&root);
            command.envs(profile.map(|(key, value)| (format!("CARGO_PROFILE_RELEASE_{key}"), value)));
            command.env("LLVM_PREFIX", &prefix).env("RUSTFLAGS", flags);
            command.env("CARGO_TARGET_DIR", root.join("build")).current_dir("/");
            cargo::run(&mut command)
        })?;
        fs::remove_dir_all(root.join("build")).ok();
        Ok(())
    }

    /// Builds the object and returns its path.
    fn build(&self) -> Result<PathBuf> {
        let target = tools::cache_dir().join("bpf-programs");
        let mut command = rustup();
        command.args([
            "cargo",
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--target",
            TARGET,
            "-Z",
            "build-std=core",
        ]);
        command.current_dir(workspace_dir().join("agent-ebpf/programs"));
        // The settings of the workspace's build do not apply here.
        for key in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL", "RUSTC_WRAPPER"] {
            command.env_remove(key);
        }
        command.env("CARGO_TARGET_DIR", &target).env("__CARGO_TESTS_ONLY_SRC_ROOT", &self.library);
        command.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", self.linker_root().join("bin/bpf-linker"));
        cargo::run(&mut command)?;
        Ok(target.join(TARGET).join("release/limpet"))
    }
}

/// `rustup run nightly …`.
fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]);
    command
}

/// Sets the toolchain up, builds, and puts object and record in their place.
pub(crate) fn build() -> Result<()> {
    let toolchain = set_up()?;
    let built = toolchain.build()?;
    let object = workspace_dir().join(OBJECT);
    fs::copy(&built, &object).with_context(|| format!("{}", object.display()))?;
    fs::write(workspace_dir().join(RECORD), toolchain.record())?;
    println!("{}: {} bytes", object.display(), fs::metadata(&object)?.len());
    Ok(())
}

fn set_up() -> Result<Toolchain> {
    if process::checked(rustup().args(["rustc", "-vV"])).is_err() {
        bail!("the programs need a nightly compiler: rustup toolchain install nightly --component rust-src");
    }
    if Toolchain::find().is_none() {
        let machine = Machine::read(Path::new("/"))?;
        apt::unpack_beside(&machine, &[SOURCE_SUITE.to_owned()], &["rust-src"])?;
    }
    let toolchain = Toolchain::find().context("the source of core: rustup +nightly component add rust-src")?;
    if !toolchain.has_linker() {
        toolchain.build_linker()?;
    }
    Ok(toolchain)
}

/// Why the object cannot be compared here with its sources: the recorded toolchain is not set up.
pub(crate) fn obstacle() -> Option<String> {
    let recorded = fs::read_to_string(workspace_dir().join(RECORD)).unwrap_or_default();
    match Toolchain::find() {
        None => Some("there is no nightly compiler with the source of core".to_owned()),
        Some(toolchain) if !toolchain.has_linker() => Some("bpf-linker is not built".to_owned()),
        Some(toolchain) if toolchain.record() != recorded => {
            Some(format!("it was built by {:?}, and here is {:?}", recorded.trim(), toolchain.record().trim()))
        }
        Some(_) => None,
    }
}

/// Builds the object, and compares it with the committed one.
pub(crate) fn compare() -> Result<()> {
    let toolchain = Toolchain::find().context("the toolchain is missing")?;
    let (built, committed) = (fs::read(toolchain.build()?)?, fs::read(workspace_dir().join(OBJECT))?);
    if built != committed {
        bail!("{OBJECT} differs from a build of its sources; run: cargo xtask build-ebpf");
    }
    Ok(())
}
