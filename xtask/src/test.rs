//! `cargo xtask test`: all tests except the nightly ones, on a machine that it sets up for them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{agent, need, sweep, tools, vm};

use crate::go_program::CRICTL;
use crate::runtime::Runtime;
use crate::{apt, cargo, dist, kubernetes, setup, suites, vm_image};

/// Which tests to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The major version of containerd to test with; without it the machine's own, or 1.7.
    #[arg(long, value_name = "MAJOR", value_parser = clap::value_parser!(u32).range(1..=2))]
    containerd: Option<u32>,
    /// The shim of the pods; without it the agent's default.
    #[arg(long, value_enum)]
    shim: Option<Shim>,
    /// The OCI runtime of the pods; without it the shim's default, runc.
    #[arg(long, value_enum)]
    runtime: Option<Runtime>,
    /// Arguments for `cargo test`: `-p limpet-tests --test logs -- rotated`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// A shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shim {
    /// limpet's own.
    Limpet,
    /// containerd's for runc.
    RuncV2,
}

impl Shim {
    /// Has the nodes of tests use this shim. limpet's is built with further arguments such as `--release`.
    pub(crate) fn choose(self, command: &mut Command, args: &[&str]) -> Result<()> {
        match self {
            Self::Limpet => {
                command.env(agent::SHIM_PROGRAM_VARIABLE, agent::build_shim(args)?);
                command.env(agent::SHIM_VARIABLE, "limpet");
            }
            Self::RuncV2 => drop(command.env(agent::SHIM_VARIABLE, "runc-v2")),
        }
        Ok(())
    }
}

/// Runs the tests. The last lines and the exit code are cargo's, unless only suites have failed: then it fails with
/// their names.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.runtime.map_or(Ok(()), Runtime::enter_its_host)?;
    if arguments.rest.is_empty() {
        ensure!(
            kubernetes::has_go() || tools::kube_apiserver().is_some(),
            "the tests build a kube-apiserver and crictl with Go, which is not installed: install it from \
             https://go.dev/dl, or run one suite: cargo xtask test -p limpet-tests --test pods"
        );
    }
    let choice = setup::for_major(arguments.containerd)?;
    tools_of_tests()?;
    if let Err(error) = setup::for_dashboard() {
        eprintln!("without Prometheus: {error:#}");
    }
    if let Err(error) = setup::for_runtime_classes() {
        eprintln!("without gVisor: {error:#}");
    }
    if let Err(error) = setup::for_clocks() {
        eprintln!("without libfaketime: {error:#}");
    }
    if tools::is_root() {
        sweep::sweep();
    }
    let mut command = cargo::command(&["test"]);
    if arguments.rest.is_empty() {
        // Only a few cases need this executable; without it they fail, and no others.
        match dist::for_tests() {
            Ok(program) => drop(command.env(agent::STATIC_PROGRAM_VARIABLE, program)),
            Err(error) => eprintln!("without the static executable: {error:#}"),
        }
        if let Err(error) = setup::with_containerd_2() {
            eprintln!("without containerd 2: {error:#}");
        }
        match kubernetes::apiserver() {
            Ok(program) => drop(command.env(tools::APISERVER_VARIABLE, program)),
            Err(error) => eprintln!("without a kube-apiserver: {error:#}"),
        }
        if let Err(error) = CRICTL.ready() {
            eprintln!("without crictl: {error:#}");
        }
        match vm_image::obstacle()? {
            None => drop(command.env(vm::IMAGE_VARIABLE, vm_image::ensure()?)),
            Some(obstacle) => eprintln!("without reboots and power cuts: {obstacle}"),
        }
    }
    let program = if arguments.rest.is_empty() { agent::build_with_tests()? } else { agent::build(&[])? };
    // Some cases need limpet's shim whatever the others use.
    command.env(agent::SHIM_PROGRAM_VARIABLE, agent::build_shim(&[])?);
    if let Some(shim) = arguments.shim {
        shim.choose(&mut command, &[])?;
    }
    command.envs(arguments.runtime.map(Runtime::variable).transpose()?);
    command.args(&arguments.rest).env(agent::PROGRAM_VARIABLE, program).envs(choice).env(need::REQUIRE_VARIABLE, "1");
    let mut suites = Ok(());
    if arguments.rest.is_empty() {
        // A change is accepted by the same cases of property tests as any other; chance chooses them in other runs.
        command.env("PROPTEST_RNG_SEED", "1");
        let (all, others) = suites::all()?;
        // The suites run before cargo's tests, whose lines come last and are not hidden by a failure of the suites.
        // There are no doc tests.
        suites = suites::run(all, &command);
        command.args(others);
    }
    let status = cargo::status(&mut command)?;
    suites.context("end-to-end suites")?;
    if !status.success() {
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// Packages that the tests alone need, and the program by which each is known. A test whose program is missing fails.
const TOOLS: [(&str, &str); 7] = [
    ("dbus", "dbus-daemon"),
    ("e2fsprogs", "mkfs.ext4"),
    ("iproute2", "ip"),
    ("kubernetes-client", "kubectl"),
    ("openssl", "openssl"),
    ("vim", "vim"),
    ("zstd", "zstd"),
];

/// Installs the missing ones where that is possible. Elsewhere the tests report what they lack, and fail.
pub(crate) fn tools_of_tests() -> Result<()> {
    let missing = TOOLS.iter().filter(|(_, program)| tools::on_path(program).is_none());
    let missing: Vec<_> = missing.map(|(package, _)| *package).collect();
    if missing.is_empty() || !tools::is_root() || tools::on_path("apt-get").is_none() {
        return Ok(());
    }
    apt::install(&missing)
}
