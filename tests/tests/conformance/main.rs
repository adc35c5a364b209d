//! Kubernetes' own conformance specs of 1.37.1, unchanged, against limpet and against the real kubelet on the same containerd: those of a
//! node, those of kubelet's CPU manager, and those of a whole cluster as far as one node can run them.

mod cluster_specs;
mod node_specs;

use std::process::ExitCode;

use limpet_tests::node::NodeOptions;
use limpet_tests::{case, cluster, kubeadm, suite};

use self::cluster_specs::{kubelet_runs_the_cluster_specs, limpet_runs_the_cluster_specs};
use self::node_specs::{
    kubelet_runs_the_cpu_specs, kubelet_runs_the_node_specs, limpet_runs_the_cpu_specs, limpet_runs_the_node_specs,
};

fn main() -> ExitCode {
    let joining = |case: suite::Case| cluster::joining(case);
    let by_kubeadm = |node: &mut NodeOptions| *node = kubeadm::options();
    let code = suite::run([
        joining(case!(limpet_runs_the_node_specs)),
        joining(case!(kubelet_runs_the_node_specs)).on(|node| node.cri = true),
        joining(case!(limpet_runs_the_cpu_specs)),
        joining(case!(kubelet_runs_the_cpu_specs)).on(|node| node.cri = true),
        case!(limpet_runs_the_cluster_specs).on(by_kubeadm),
        case!(kubelet_runs_the_cluster_specs).on(by_kubeadm),
    ]);
    cluster::end();
    code
}
