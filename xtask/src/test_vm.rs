//! `cargo xtask test-vm`: the tests that need a machine of their own, under QEMU's emulation.

use std::process::Command;

use anyhow::Result;
use limpet_tests::{agent, vm};

use crate::architecture::Architecture;
use crate::dist::Profile;
use crate::go_program::ETCD;
use crate::{cargo, dist, kubernetes, release, setup, vm_image};

/// The end-to-end suites that `--all` runs inside the machine: what another cgroup driver and another cgroup version may
/// change, each with a part of the names of its cases where not all run. The others, emulated, would take hours.
const SUITES: [(&str, &str); 9] = [
    ("cpus", ""),
    ("crashes", ""),
    ("edits", ""),
    // The kernel reports that the pods have used up their memory, which differs between the versions.
    ("eviction", "all_pods_are_kept_within"),
    ("lifecycle", ""),
    ("logs", ""),
    ("network", ""),
    ("pods", ""),
    ("restarts", ""),
];

/// Which of them to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also the long ones: every power cut three times, and the main end-to-end suites inside the machine.
    #[arg(long)]
    all: bool,
    /// A small gateway in place of the usual machine, on which the deb is installed: x86_64, aarch64 or armv7.
    #[arg(long, value_name = "ARCHITECTURE", conflicts_with = "all")]
    gateway: Option<Architecture>,
    /// The deb as nodes install it. Without this its executables are hardly optimised, and built in a fifth of the time.
    #[arg(long, requires = "gateway")]
    dist: bool,
    /// Arguments for the tests: part of a name, `--nocapture`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Builds the image if it is missing, builds the tests, and runs them.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::default()?;
    let mut command = cargo::command(&["test", "-p", "limpet-tests", "--test", "vm", "--"]);
    command.args(&arguments.rest);
    match arguments.gateway {
        Some(architecture) => add_gateway(&mut command, architecture, arguments.dist)?,
        None => {
            let image = vm_image::ensure()?;
            let program = if arguments.all { dist::build()? } else { dist::for_tests()? };
            command.env(agent::STATIC_PROGRAM_VARIABLE, program).env(vm::IMAGE_VARIABLE, image);
        }
    }
    if arguments.all {
        kubernetes::kubeadm().and_then(|()| ETCD.ready())?;
        command.env(vm::ALL_VARIABLE, "1").env(vm::SUITES_VARIABLE, suites()?);
    }
    let status = cargo::status(&mut command)?;
    if !status.success() {
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// Has the tests run on a gateway of that architecture.
fn add_gateway(command: &mut Command, architecture: Architecture, dist: bool) -> Result<()> {
    let image = match architecture {
        Architecture::X86 => vm_image::ensure()?,
        other => vm_image::other::ensure(other)?,
    };
    let deb = release::deb(architecture, if dist { Profile::Dist } else { Profile::DistTest })?;
    command.env(vm::IMAGE_VARIABLE, image).env(vm::GATEWAY_VARIABLE, architecture.name()).env(vm::DEB_VARIABLE, deb);
    Ok(())
}

/// The executables of the end-to-end suites, built, as [`vm::suites`] reads them.
fn suites() -> Result<String> {
    let mut build = cargo::command(&["test", "-p", "limpet-tests", "--no-run"]);
    build.args(SUITES.iter().flat_map(|(suite, _)| ["--test", suite]));
    let built = cargo::executables(&mut build)?;
    let suite = |(name, cases): &(&str, &str)| {
        let path = &built.iter().find(|target| target.name == *name)?.path;
        Some(format!("{}={cases}", path.display()))
    };
    Ok(SUITES.iter().filter_map(suite).collect::<Vec<_>>().join(":"))
}
