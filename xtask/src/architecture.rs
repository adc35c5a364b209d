//! The architectures that nodes have: what Rust, Debian, rpm and QEMU call each, and the compilers that build for it.

use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;
use limpet_tests::agent::workspace_dir;
use limpet_tests::{process, tools};

use crate::apt;

/// An architecture that limpet is released for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit Intel and AMD.
    #[value(name = "x86_64")]
    X86,
    /// 64-bit ARM.
    #[value(name = "aarch64")]
    Aarch64,
    /// 32-bit ARM with a floating-point unit.
    #[value(name = "armv7")]
    Armv7,
    /// 64-bit RISC-V with the general-purpose extensions.
    #[value(name = "riscv64")]
    Riscv64,
}

impl Architecture {
    /// All architectures, in the order in which they are built.
    pub(crate) const ALL: [Self; 4] = [Self::X86, Self::Aarch64, Self::Armv7, Self::Riscv64];

    /// Its name in names of files, as in `limpet-0.1.0-aarch64.tar.gz`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Armv7 => "armv7",
            Self::Riscv64 => "riscv64",
        }
    }

    /// Its name as a target of the compiler.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
            Self::Armv7 => "armv7-unknown-linux-gnueabihf",
            Self::Riscv64 => "riscv64gc-unknown-linux-gnu",
        }
    }

    /// Debian's name.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Aarch64 => "arm64",
            Self::Armv7 => "armhf",
            Self::Riscv64 => "riscv64",
        }
    }

    /// rpm's name.
    pub(crate) fn rpm(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Armv7 => "armv7hl",
            Self::Riscv64 => "riscv64",
        }
    }

    /// The program of QEMU that runs its executables on another machine.
    pub(crate) fn emulator(self) -> &'static str {
        match self {
            Self::X86 => "qemu-x86_64-static",
            Self::Aarch64 => "qemu-aarch64-static",
            Self::Armv7 => "qemu-arm-static",
            Self::Riscv64 => "qemu-riscv64-static",
        }
    }

    /// How names of GNU's programs and directories for it begin.
    fn gnu(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-linux-gnu",
            Self::Aarch64 => "aarch64-linux-gnu",
            Self::Armv7 => "arm-linux-gnueabihf",
            Self::Riscv64 => "riscv64-linux-gnu",
        }
    }

    /// The name of a program of GNU that makes files for it: `gcc`, `ar`.
    pub(crate) fn program(self, name: &str) -> String {
        format!("{}-{name}", self.gnu())
    }

    /// The packages of its compiler and of the C library that is linked.
    fn packages(self) -> [String; 2] {
        let name = self.gnu().replace('_', "-");
        [format!("gcc-{name}"), format!("libc6-dev-{}-cross", self.debian())]
    }
}

/// Installs what is missing to build for these: Rust's library, a C compiler and a static C library.
pub(crate) fn install_toolchains(architectures: &[Architecture]) -> Result<()> {
    let targets: Vec<_> = architectures.iter().map(|architecture| architecture.target()).collect();
    add_rust_targets(&targets)?;
    let missing = architectures.iter().filter(|architecture| tools::on_path(&architecture.program("gcc")).is_none());
    let packages: Vec<_> = missing.flat_map(|architecture| architecture.packages()).collect();
    if packages.is_empty() {
        return Ok(());
    }
    if !tools::is_root() || tools::on_path("apt-get").is_none() {
        bail!("missing here: {}. Run as root on Debian or Ubuntu to install them", packages.join(", "));
    }
    apt::install(&packages.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Adds Rust's library for the targets that lack it.
pub(crate) fn add_rust_targets(targets: &[&str]) -> Result<()> {
    let rustup = |args: &[&str]| process::checked(Command::new("rustup").args(args).current_dir(workspace_dir()));
    let installed = rustup(&["target", "list", "--installed"])?;
    let is_missing = |target: &&str| !installed.lines().any(|line| line == *target);
    let missing: Vec<_> = targets.iter().copied().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("Rust's library for {}", missing.join(", "));
    apt::say(&what, || rustup(&[&["target", "add"], &missing[..]].concat()).map(drop))
}
