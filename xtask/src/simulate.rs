//! `cargo xtask simulate`: supervisor, workers and merge over a fake executor, with random events from seeds.

use anyhow::Result;

use crate::{cargo, setup};

/// Which seeds to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The seeds of many runs: `0..10000`, the last one excluded. What every test run tries when nothing is given.
    #[arg(long, value_name = "A..B", conflicts_with = "seed")]
    seeds: Option<String>,
    /// The seed of one run.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The node is part of a cluster, and the line to its apiserver is bad.
    #[arg(long)]
    link: bool,
    /// The node's pods are those of workloads.
    #[arg(long, conflicts_with = "link")]
    kinds: bool,
    /// Each version of the node's source is on trial, and some do not work.
    #[arg(long, conflicts_with_all = ["link", "kinds"])]
    generations: bool,
    /// Print every step of that run.
    #[arg(long, requires = "seed")]
    trace: bool,
}

/// Runs the simulator, whose lines and exit code come last.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::for_building()?;
    let mut command = cargo::command(&["test", "--quiet", "-p", "limpet", "--test", "simulate", "--"]);
    if arguments.link {
        command.arg("--link");
    }
    if arguments.kinds {
        command.arg("--kinds");
    }
    if arguments.generations {
        command.arg("--generations");
    }
    if let Some(seeds) = &arguments.seeds {
        command.args(["--seeds", seeds]);
    }
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if arguments.trace {
        command.arg("--trace");
    }
    let status = cargo::status(&mut command)?;
    std::process::exit(status.code().unwrap_or(1));
}
