//! `cargo xtask test-vm`: the tests that need a machine of their own, under QEMU's emulation.

use anyhow::Result;
use limpet_tests::{agent, vm};

use crate::go_program::ETCD;
use crate::{cargo, dist, kubernetes, setup, vm_image};

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
    /// Arguments for the tests: part of a name, `--nocapture`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Builds the image if it is missing, builds the tests, and runs them.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::default()?;
    let image = vm_image::ensure()?;
    let program = if arguments.all { dist::build()? } else { dist::for_tests()? };
    let mut command = cargo::command(&["test", "-p", "limpet-tests", "--test", "vm", "--"]);
    command.args(&arguments.rest).env(agent::STATIC_PROGRAM_VARIABLE, program).env(vm::IMAGE_VARIABLE, image);
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
