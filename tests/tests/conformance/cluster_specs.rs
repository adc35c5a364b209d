//! The specs of a cluster, `test/e2e`, as far as one node can run them: kubeadm sets it up, with kube-proxy and CoreDNS, and the node's
//! agent runs all of it.

use std::fs;

use anyhow::{Context as _, Result};
use limpet_tests::kubeadm::host::Host;
use limpet_tests::kubeadm::{ADDRESSES, images, initial, wait_mirrors};
use limpet_tests::process::tail;
use limpet_tests::registry::Registry;
use limpet_tests::specs::{self, SUITE_TIMEOUT, Specs};
use limpet_tests::{TestNode, agent, tools};

/// The labels of the specs. Those that need the node for themselves run one at a time after the others.
const LABELS: &str = "Conformance && !Flaky";

pub(crate) fn limpet_runs_the_cluster_specs(node: &mut TestNode) -> Result<()> {
    run("limpet-cluster", &mut Host::boot(node, ADDRESSES[0])?)
}

pub(crate) fn kubelet_runs_the_cluster_specs(node: &mut TestNode) -> Result<()> {
    let mut host = Host::boot(node, ADDRESSES[0])?;
    host.use_kubelet(&tools::kubernetes("kubelet").context("no kubelet here; run: cargo xtask kubelet")?)?;
    run("kubelet-cluster", &mut host)
}

fn run(report: &str, host: &mut Host<'_>) -> Result<()> {
    host.give_address()?;
    host.node.cni.as_ref().context("no pod network")?.forward_ports()?;
    images::import_control_plane(host.node)?;
    images::import_name_server(host.node)?;
    images::import(host.node)?;
    let images = specs::images(host.node.dir())?;
    host.node.import(&images.iter().collect::<Vec<_>>())?;
    // Images that are always pulled come from here.
    let registry = Registry::start_on_host_of(host.pid(), &host.node.dir().join("registry"))?;
    let certs_d = host.node.containerd.certs_d();
    specs::serve(&images, &registry, &certs_d)?;
    host.shell(&format!("mkdir -p /etc/containerd && cp -r {} /etc/containerd/", certs_d.display()))?;
    let log = host.node.dir().join("agent.log");
    let set_up = host.kubeadm(&["init", "--config"], &initial(host)).and_then(|()| wait_mirrors(host));
    set_up.with_context(|| tail(&fs::read_to_string(&log).unwrap_or_default(), 40))?;
    host.kubectl(&["taint", "nodes", "--all", "node-role.kubernetes.io/control-plane-"])?;
    for what in ["daemonset/kube-proxy", "deployment/coredns"] {
        host.kubectl(&["-n", "kube-system", "rollout", "status", what, "--timeout=120s"])?;
    }
    let kubectl = tools::kubernetes("kubectl").context("no kubectl here; run: cargo xtask conformance")?;
    let arguments = [
        "--kubeconfig=/etc/kubernetes/admin.conf".to_owned(),
        "--provider=local".to_owned(),
        "--num-nodes=1".to_owned(),
        format!("--kubectl-path={}", kubectl.display()),
    ];
    let specs = Specs { program: "e2e", report, labels: LABELS, alone: None, left_out: &[], arguments: &arguments };
    let ran = specs.run(host.command("env"), host.node.dir(), |specs| specs.wait(SUITE_TIMEOUT).map(drop));
    fs::copy(log, agent::workspace_dir().join(format!("target/conformance/{report}-agent.log")))?;
    ran
}
