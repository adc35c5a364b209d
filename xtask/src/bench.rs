//! `cargo xtask bench`: what limpet costs, beside what it cannot cost less than.

use anyhow::Result;
use limpet_tests::agent;

use crate::{cargo, setup};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// The major version of containerd to measure with.
    #[arg(long, value_name = "MAJOR", value_parser = clap::value_parser!(u32).range(1..=2))]
    containerd: Option<u32>,
    /// How many starts of each kind.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Manifest to first process and exit to restart, end to end, beside containerd's floor.
    Start,
    /// The merge beside the plain way, and the way from a manifest's rename to its change; reading by criterion.
    Merge,
    /// Both.
    All,
}

/// Runs the benches asked for.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.what != What::Start {
        cargo::run(&mut cargo::command(&["bench", "--package", "limpet", "--bench", "pure", "--bench", "merge"]))?;
    }
    if arguments.what != What::Merge {
        let choice = setup::for_major(arguments.containerd)?;
        let program = agent::build(&["--release"])?;
        let mut command = cargo::command(&["bench", "--package", "limpet-tests", "--bench", "start"]);
        command.env(agent::PROGRAM_VARIABLE, program).env("LIMPET_BENCH_RUNS", arguments.runs.to_string());
        cargo::run(command.envs(choice))?;
    }
    Ok(())
}
