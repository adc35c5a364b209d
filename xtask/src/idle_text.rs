//! `cargo xtask idle-text`: records which functions an idle agent runs, as the linker script that puts them side by side.
//!
//! Where a page of an executable is used, the kernel maps the 64 KiB around it. What an idle node of a cluster runs is
//! 0.8 MiB of 20 MiB of text; scattered, it held 12 MiB of memory. The script names functions as the compiler does but
//! for the hashes of crates in them, so one that is older than the sources still holds for nearly all. It is of use for
//! other architectures, too.

mod script;
#[cfg(target_arch = "x86_64")]
mod tracer;
/// Breakpoints and registers differ between processors, so nothing can be recorded on another one.
#[cfg(not(target_arch = "x86_64"))]
mod tracer {
    use std::time::Duration;

    pub(super) fn executed(_pid: u32, _functions: &[u64], _periods: &[Duration]) -> anyhow::Result<Vec<Vec<u64>>> {
        anyhow::bail!("recording works on x86-64 only; the script is for all architectures")
    }
}

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::{process, sweep, wait};
use serde_json::Value;

use crate::cluster::Node;
use crate::dist::{self, IDLE_TEXT_SCRIPT};
use crate::{kubernetes, test};

/// How many pods the apiserver has on the idle node.
const PODS: usize = 50;
const PODS_PATH: &str = "/api/v1/namespaces/default/pods";
/// Far longer than the start of the pods takes.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A node without a change for this time is idle.
const SETTLE_TIME: Duration = Duration::from_secs(90);
/// How long is recorded: during several renewals of the lease; then longer than the interval between two reports of the
/// Node's status, 5 minutes, and the life of a watch, up to 10 minutes.
const PERIODS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// Builds the executable with its symbols, lets it idle in a cluster, records, and writes the script.
pub(crate) fn run() -> Result<()> {
    wait::end_on_signal();
    test::tools_of_tests()?;
    kubernetes::control_plane()?;
    let map = std::env::temp_dir().join(format!("limpet-link-map-{}", std::process::id()));
    let program = dist::with_symbols(&map)?;
    let sections = script::sections(&std::fs::read_to_string(&map).context("the linker's map")?);
    std::fs::remove_file(&map).ok();
    let functions = functions(&program)?;
    sweep::sweep();
    let mut cluster = Cluster::boot()?;
    cluster.start_controllers(&[])?;
    let node = Node::with_limpet(program, &cluster)?;
    let executed = record(&cluster, &node, &functions);
    let gone = node.finish();
    drop(cluster);
    let text = script::text(&sections, &executed?);
    gone?;
    std::fs::write(IDLE_TEXT_SCRIPT, &text).context(IDLE_TEXT_SCRIPT)?;
    println!("{IDLE_TEXT_SCRIPT}: {} lines", text.lines().count());
    Ok(())
}

/// Where the functions begin that the idle agent has run, by the period in which it first did.
fn record(cluster: &Cluster, node: &Node, functions: &[u64]) -> Result<Vec<Vec<u64>>> {
    let pods: Vec<_> = (0..PODS).map(|number| idle(number, node.name())).collect();
    cluster.create_all(PODS_PATH, &pods)?;
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    wait::until_true(START_TIMEOUT, "the start of all pods", || {
        cluster.list(PODS_PATH).is_ok_and(|pods| pods.iter().all(is_running))
    })?;
    wait::pass(SETTLE_TIME)?;
    println!("{:?} of idle time are recorded.", PERIODS.iter().sum::<Duration>());
    tracer::executed(node.limpet()?, functions, &PERIODS)
}

fn idle(number: usize, node: &str) -> Value {
    let mut pod = simple(&format!("idle-{number}"), IDLE);
    pod["spec"]["nodeName"] = node.into();
    pod["metadata"]["namespace"] = "default".into();
    pod
}

/// Where the functions of an executable begin, in order.
fn functions(program: &Path) -> Result<Vec<u64>> {
    let symbols = process::checked(std::process::Command::new("nm").arg("--defined-only").arg(program))?;
    let code = symbols.lines().filter_map(|line| {
        let (address, symbol) = line.split_once(' ')?;
        let kind = symbol.chars().next()?;
        "tTwW".contains(kind).then(|| u64::from_str_radix(address, 16).ok())?
    });
    let ordered: BTreeSet<u64> = code.collect();
    ensure!(!ordered.is_empty(), "{} has no symbols", program.display());
    Ok(ordered.into_iter().collect())
}
