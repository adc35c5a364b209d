//! `cargo xtask bench`: what limpet costs, beside what it cannot cost less than and beside a real kubelet.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use limpet_tests::{agent, contender, hollow, measure, podman};

use crate::bench_pressure::{self, Scenario};
use crate::runtime::Runtime;
use crate::test::Shim;
use crate::{bench_emulated, cargo, dist, kubernetes, setup};

/// What to measure. The machine has to be quiet: every figure is of this machine, at this time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// The major version of containerd to measure with.
    #[arg(long, value_name = "MAJOR", value_parser = clap::value_parser!(u32).range(1..=2))]
    containerd: Option<u32>,
    /// Measure a real kubelet, too, in the same run: this program, or the one that `cargo xtask kubelet` builds.
    ///
    /// It runs on the containerd of the bench, in turns with limpet, and but for `sync` and `delays` without an apiserver.
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    kubelet: Option<Option<PathBuf>>,
    /// Measure Debian's Podman, too, in `idle`, `start`, `update` and `single-node`: `podman play kube` for each pod, on the
    /// host's network.
    #[arg(long)]
    podman: bool,
    /// Measure the executable for nodes, which `cargo xtask dist` builds, instead of a release build: start, idle,
    /// probes, adopt, scrape, hollow, sync, delays, update, services, single-node.
    #[arg(long)]
    dist: bool,
    /// The shim of limpet's pods; without it the agent's default.
    #[arg(long, value_enum)]
    shim: Option<Shim>,
    /// The OCI runtime of limpet's pods; without it the shim's default, runc. The floor always has runc.
    #[arg(long, value_enum)]
    runtime: Option<Runtime>,
    /// How often each thing is measured. A run of kubelet's takes some 20 seconds: it finishes an edit after 10. Of
    /// `delays`, `update` and `single-node` no more than 10 runs are made, of `delays` three of kubelet, and of `services` 20.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How long `idle`, `probes`, `hollow`, `sync` and `single-node` look on; twice the interval at which the nodes of `fleet` ask.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How many nodes `hollow` has, which is 1,000 without this, and `fleet`, which is 500.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Have `watch` measure on an emulated Debian, whose kernel takes the BPF programs when this one does not. `pressure` is
    /// measured nowhere else: it fills disks, and takes memory and process ids.
    #[arg(long)]
    emulated: bool,
    /// Only these scenarios of `pressure`; the table has the last results of the others.
    #[arg(long, value_enum, value_name = "NAME")]
    scenario: Vec<Scenario>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Manifest to first process, exit to restart, edit to new pod, removal to end: one pod at a time, and 20 at once.
    Start,
    /// Memory, wake-ups and bytes written while nothing happens, with 0, 10 and 50 pods.
    Idle,
    /// From the answer of a new containerd to 50 running pods: by each shim, and by kubelet.
    Boot,
    /// Wake-ups, processor time and memory of 100 pods with three probes each.
    Probes,
    /// The agent's start to 50 running pods adopted.
    Adopt,
    /// The pages with figures of 50 pods: time of each, and the agent's memory before and after 1,000.
    Scrape,
    /// The merge beside the plain way, and the way from a manifest's rename to its change; reading by criterion.
    Merge,
    /// From a manifest's rename to knowing of it, by each backend and by kubelet's way; and what idling costs.
    Watch,
    /// Nodes without containers against one apiserver: their requests and memory, idle and after an outage.
    Hollow,
    /// Requests, bytes and memory as a node of a cluster with 50 pods; bytes written without a connection, and its return.
    Sync,
    /// How long it takes until things are right again: mirrors, ConfigMaps, a Node that was deleted, a link that
    /// carries nothing.
    Delays,
    /// An update of one layer in ten: bytes over the network, bytes written, and the time in which nothing runs.
    Update,
    /// Connections through a Service with 1 to 1,000 endpoints beside kube-proxy's; the agent's memory with 100 Services; the
    /// time from a pod's readiness to a connection.
    Services,
    /// Ten Deployments with Services beside a whole control plane on the node: memory, wake-ups, bytes written, and the time
    /// from power on until all of them answer.
    SingleNode,
    /// Nodes that ask one server for bundles: requests and bytes, and a roll-out by stages.
    Fleet,
    /// A node that is short of disk, memory, process ids or room for images: who is ended, when, and what is left.
    /// Needs --emulated.
    Pressure,
    /// All of them but `pressure`.
    All,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.runtime.map_or(Ok(()), Runtime::enter_its_host)?;
    setup::for_building()?;
    if arguments.what == What::Pressure {
        return pressure(arguments);
    }
    let wanted = |what| arguments.what == what || arguments.what == What::All;
    if wanted(What::Merge) {
        cargo::run(&mut cargo::command(&["bench", "--package", "limpet", "--bench", "pure", "--bench", "merge"]))?;
    }
    if wanted(What::Watch) && arguments.emulated {
        bench_emulated::watch(arguments.runs, arguments.seconds)?;
    } else if wanted(What::Watch) {
        let mut command = cargo::command(&["bench", "--package", "limpet", "--bench", "watch"]);
        command.env(measure::RUNS_VARIABLE, arguments.runs.to_string());
        command.env(measure::SECONDS_VARIABLE, arguments.seconds.to_string());
        cargo::run(&mut command)?;
    }
    if wanted(What::Fleet) {
        let mut command = cargo::command(&["bench", "--package", "limpet-sources", "--bench", "fleet"]);
        command.env(measure::SECONDS_VARIABLE, arguments.seconds.to_string());
        command.envs(arguments.nodes.map(|nodes| (hollow::NODES_VARIABLE, nodes.to_string())));
        cargo::run(&mut command)?;
    }
    if wanted(What::Services) || wanted(What::SingleNode) {
        setup::for_kube_proxy()?;
        kubernetes::single_node()?;
    }
    if wanted(What::Services) {
        let mut command = cargo::command(&["bench", "--package", "limpet-services", "--bench", "rules"]);
        command.env(measure::RUNS_VARIABLE, arguments.runs.to_string());
        cargo::run(&mut command)?;
    }
    let on_a_node = [
        (What::Start, "start"),
        (What::Idle, "idle"),
        (What::Boot, "boot"),
        (What::Probes, "probes"),
        (What::Adopt, "adopt"),
        (What::Scrape, "scrape"),
        (What::Hollow, "hollow"),
        (What::Sync, "sync"),
        (What::Delays, "delays"),
        (What::Update, "update"),
        (What::Services, "services"),
        (What::SingleNode, "single-node"),
    ];
    let names: Vec<_> = on_a_node.into_iter().filter(|(what, _)| wanted(*what)).map(|(_, name)| name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let kubelet = kubelet(arguments)?;
    if arguments.podman {
        setup::for_podman()?;
    }
    let choice = setup::for_major(arguments.containerd)?;
    let program = if arguments.dist { dist::build()? } else { agent::build(&["--release"])? };
    for name in names {
        let mut command = cargo::command(&["bench", "--package", "limpet-tests", "--bench", name]);
        command.env(agent::PROGRAM_VARIABLE, &program).envs(choice.iter().cloned());
        match arguments.shim {
            // limpet's shim is built beside the agent.
            Some(Shim::Limpet) if arguments.dist => {
                command.env(agent::SHIM_PROGRAM_VARIABLE, program.with_file_name(agent::SHIM.0));
                command.env(agent::SHIM_VARIABLE, "limpet");
            }
            Some(shim) => shim.choose(&mut command, &["--release"])?,
            None => {}
        }
        command.envs(arguments.runtime.map(Runtime::variable).transpose()?);
        command.env(measure::RUNS_VARIABLE, arguments.runs.to_string());
        command.env(measure::SECONDS_VARIABLE, arguments.seconds.to_string());
        command.env(measure::DIST_VARIABLE, u8::from(arguments.dist).to_string());
        command.envs(arguments.nodes.map(|nodes| (hollow::NODES_VARIABLE, nodes.to_string())));
        if arguments.podman && ["idle", "start", "update", "single-node"].contains(&name) {
            command.env(podman::PODMAN_VARIABLE, "1");
        }
        if let Some(kubelet) = &kubelet {
            ensure!(kubelet.is_file(), "{} is not a kubelet", kubelet.display());
            command.env(contender::KUBELET_VARIABLE, kubelet.canonicalize()?);
        }
        cargo::run(&mut command)?;
    }
    Ok(())
}

fn pressure(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.emulated,
        "pressure fills disks and uses all memory: add --emulated, which runs it in a virtual machine"
    );
    bench_pressure::run(&bench_pressure::Options {
        scenarios: arguments.scenario.clone(),
        dist: arguments.dist,
        kubelet: kubelet(arguments)?,
    })
}

/// The kubelet to measure beside limpet, if one is wanted.
fn kubelet(arguments: &Arguments) -> Result<Option<PathBuf>> {
    arguments.kubelet.clone().map(|path| path.map_or_else(kubernetes::kubelet, Ok)).transpose()
}
