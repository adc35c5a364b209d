//! `cargo xtask cluster`: a control plane as kubeadm sets one up, with a node if wanted, until Ctrl-C.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::{Cluster, condition, wait_at};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::node::NodeOptions;
use limpet_tests::{TestNode, agent, image, sweep, tools, wait};

use crate::{kubernetes, setup, test};

/// The node of the cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Add a node that runs limpet, built as the tests have it.
    #[arg(long)]
    limpet: bool,
    /// Add a node that runs the kubelet of `cargo xtask kubelet`.
    #[arg(long, conflicts_with = "limpet")]
    kubelet: bool,
}

/// Which agent the node has.
enum Which {
    Limpet,
    Kubelet,
}

/// A node of the cluster. Its parts are dropped in this order.
pub(crate) struct Node {
    kubelet: Option<Kubelet>,
    node: TestNode,
    _port: Port,
    _address: NodeAddress,
}

/// Builds what is missing, starts everything, prints how to use it, and waits for Ctrl-C.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    wait::end_on_signal();
    test::tools_of_tests()?;
    kubernetes::control_plane()?;
    let which = match (arguments.limpet, arguments.kubelet) {
        (true, _) => Some(Which::Limpet),
        (_, true) => Some(Which::Kubelet),
        _ => None,
    };
    let options = which.as_ref().map(options).transpose()?;
    ensure!(tools::is_root(), "a cluster needs root: sudo -E env PATH=\"$PATH\" cargo xtask cluster");
    sweep::sweep();
    let start = Instant::now();
    // The node boots while the control plane comes up.
    let (cluster, node) = std::thread::scope(|scope| {
        let node = options.as_ref().map(|options| scope.spawn(|| TestNode::boot(options)));
        let cluster = control_plane();
        let node = node.map(|node| node.join().unwrap_or_else(|_| Err(anyhow::anyhow!("booting a node panicked"))));
        (cluster, node.transpose())
    });
    let (mut cluster, node) = (cluster?, node?);
    let mut node = match (which, node) {
        (Some(which), Some(node)) => Some(join(&which, node, &cluster)?),
        _ => None,
    };
    say(&cluster, node.as_ref(), start.elapsed())?;
    let mut ended = Ok(());
    while ended.is_ok() && !wait::interrupted() {
        std::thread::sleep(Duration::from_millis(200));
        ended = cluster.check().and_then(|()| node.as_mut().map_or(Ok(()), Node::check));
    }
    let gone = node.map_or(Ok(()), Node::finish);
    drop(cluster);
    ended.and(gone)
}

fn control_plane() -> Result<Cluster> {
    let mut cluster = Cluster::boot()?;
    cluster.start_controllers(&[])?;
    Ok(cluster)
}

/// The options of the node, after everything that it needs is fetched and built.
fn options(which: &Which) -> Result<NodeOptions> {
    setup::default()?;
    Ok(match which {
        Which::Limpet => with_program(Some(agent::build(&[])?)),
        Which::Kubelet => {
            kubernetes::kubelet()?;
            NodeOptions { cri: true, ..with_program(None) }
        }
    })
}

/// The options of a node that runs this executable of limpet.
fn with_program(program: Option<PathBuf>) -> NodeOptions {
    NodeOptions { program, cni: true, agent: false, ..NodeOptions::default() }
}

/// Starts the node's agent in the cluster.
fn join(which: &Which, mut node: TestNode, cluster: &Cluster) -> Result<Node> {
    let (address, port) = (NodeAddress::add()?, Port::claim()?);
    let kubelet = match which {
        Which::Limpet => {
            join_with_api(&mut node, cluster, &port, &address)?;
            None
        }
        Which::Kubelet => {
            let program = tools::kubernetes("kubelet").context("no kubelet")?;
            let mut kubelet = Kubelet::prepare(&program, &node)?;
            kubelet.admit(cluster, &address)?;
            kubelet.spawn()?;
            let path = format!("/api/v1/nodes/{}", kubelet.name());
            let ready = wait_at(cluster, &path, "ready", |shown| condition(shown, "Ready")["status"] == "True");
            ready.with_context(|| kubelet.log())?;
            Some(kubelet)
        }
    };
    Ok(Node { kubelet, node, _port: port, _address: address })
}

impl Node {
    /// A node that runs that executable of limpet.
    pub(crate) fn with_limpet(program: PathBuf, cluster: &Cluster) -> Result<Self> {
        join(&Which::Limpet, TestNode::boot(&with_program(Some(program)))?, cluster)
    }

    /// limpet's process.
    pub(crate) fn limpet(&self) -> Result<u32> {
        self.node.agent.pid().context("limpet does not run")
    }

    pub(crate) fn name(&self) -> &str {
        self.kubelet.as_ref().map_or_else(|| self.node.name(), Kubelet::name)
    }

    fn check(&mut self) -> Result<()> {
        match &mut self.kubelet {
            Some(kubelet) => kubelet.check(),
            None => self.node.agent.check(),
        }
    }

    /// Takes the node down. Fails if anything is left on the machine.
    pub(crate) fn finish(self) -> Result<()> {
        drop(self.kubelet);
        self.node.finish()
    }
}

fn say(cluster: &Cluster, node: Option<&Node>, took: Duration) -> Result<()> {
    println!("The cluster is up, after {:.1} s.\n", took.as_secs_f64());
    println!("    export KUBECONFIG={}", cluster.kubeconfig()?.display());
    if let Some(node) = node {
        println!("    kubectl create deployment web --image={} --replicas=2 -- sleep 100000", image::V1);
        println!("\nThe node is {}; all its files are below {}.", node.name(), node.node.dir().display());
        if node.kubelet.is_none() {
            println!("    limpet --socket {} pods", node.node.agent.settings().socket().display());
        }
    }
    println!("\nThere is no kube-proxy and no DNS. Ctrl-C removes everything.");
    Ok(())
}
