//! An unmodified cluster set up by kubeadm, with its files and flags. Each node has its own host, with programs and
//! images built from their sources.

pub mod host;
pub mod images;

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::host::Host;
use crate::node::NodeOptions;
use crate::{cluster, wait};

/// The addresses of the two hosts.
pub const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const TOKEN: &str = "abcdef.0123456789abcdef";
/// The static pods of a control plane.
pub const CONTROL_PLANE: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// How long several programs may take to start on a machine that may be busy.
pub const A_WHILE: Duration = Duration::from_secs(180);

/// A node with its own host, whose containerd and agent the test starts.
pub fn options() -> NodeOptions {
    NodeOptions { cni: true, cri: true, agent: false, containerd: false, images: false, ..NodeOptions::default() }
}

/// The mirrors of the control plane's pods, as far as the apiserver has them.
pub fn control_plane(host: &Host<'_>) -> Result<Vec<Value>> {
    let list = host.kubectl(&["-n", "kube-system", "get", "pods", "-l", "tier=control-plane", "-o", "json"])?;
    let list: Value = serde_json::from_str(&list)?;
    list["items"].as_array().cloned().context("no list")
}

/// The UIDs of pods, by which they are compared.
pub fn uids(pods: &[Value]) -> Vec<&Value> {
    pods.iter().map(|pod| &pod["metadata"]["uid"]).collect()
}

/// Waits until the apiserver shows the control plane as the node's own pods, each ready.
pub fn wait_mirrors(host: &Host<'_>) -> Result<()> {
    let name = host.node.name();
    let is_ready = |pods: &[Value], component: &str| {
        let expected = format!("{component}-{name}");
        pods.iter().any(|pod| {
            pod["metadata"]["name"] == *expected
                && pod["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"
                && cluster::condition(pod, "Ready")["status"] == "True"
        })
    };
    wait::until_true(A_WHILE, "ready mirrors of the control plane", || {
        control_plane(host).is_ok_and(|pods| CONTROL_PLANE.iter().all(|component| is_ready(&pods, component)))
    })
}

fn registration(node: &str, address: &str) -> Value {
    json!({
        "name": node,
        "criSocket": "unix:///run/containerd/containerd.sock",
        "kubeletExtraArgs": [{ "name": "node-ip", "value": address }],
    })
}

/// A cluster whose first node has this name and address, and whose control plane may take so long to start: `4m0s`.
pub fn first_node(node: &str, address: &str, patience: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "bootstrapTokens": [{ "token": TOKEN }],
            "localAPIEndpoint": { "advertiseAddress": address },
            "nodeRegistration": registration(node, address),
            "timeouts": { "controlPlaneComponentHealthCheck": patience },
        }),
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": images::VERSION,
            "imageRepository": images::REPOSITORY,
        }),
    ]
}

/// The documents from which kubeadm sets up the cluster. kubelet's part is for the whole cluster; cgroups are set for
/// each node, see [`Host`].
pub fn initial(host: &Host<'_>) -> Vec<Value> {
    let [first_node, cluster] = first_node(host.node.name(), host.address, "4m0s");
    vec![
        first_node,
        cluster,
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            // The node shares the machine's disk.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": { "memory.available": "1Mi" },
        }),
        proxy_configuration(),
    ]
}

/// How kube-proxy forwards.
pub fn proxy_configuration() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        // Pods of one bridge answer past the node, which the kernel would prevent only with br_netfilter.
        "iptables": { "masqueradeAll": true },
        // The kernel's table belongs to the whole machine.
        "conntrack": { "maxPerCore": 0 },
    })
}

/// The documents with which kubeadm joins the cluster.
pub fn joining(host: &Host<'_>) -> Vec<Value> {
    let discovery = json!({
        "token": TOKEN,
        "apiServerEndpoint": format!("{}:6443", ADDRESSES[0]),
        "unsafeSkipCAVerification": true,
    });
    vec![json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": { "bootstrapToken": discovery },
        "nodeRegistration": registration(host.node.name(), host.address),
    })]
}
