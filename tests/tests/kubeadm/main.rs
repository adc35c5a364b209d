//! kubeadm, as it is, sets up a cluster whose nodes run limpet in kubelet's place: with kubeadm's files and flags limpet runs
//! the control plane from the manifest directory, joins it, and runs what kubeadm adds to it. A second node joins by a token.
//! Another cluster has its network from static pods.

mod host;
mod images;
mod static_network;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, shell, simple, with};
use limpet_tests::node::NodeOptions;
use limpet_tests::{TestNode, case, cluster, suite, wait};
use serde_json::{Value, json};

use self::host::Host;
use self::static_network::kube_proxy_and_a_network_daemon_are_static_pods;

/// The addresses of the two hosts.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const TOKEN: &str = "abcdef.0123456789abcdef";
/// The static pods of a control plane.
const CONTROL_PLANE: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Several programs start, on a machine that may have other work.
const A_WHILE: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let without_agent = |node: &mut NodeOptions| *node = options();
    suite::run([
        case!(a_cluster_is_set_up_joined_and_comes_back).on(without_agent),
        case!(kube_proxy_and_a_network_daemon_are_static_pods).on(without_agent),
    ])
}

/// A node whose containerd and agent the test starts, on a host of its own.
fn options() -> NodeOptions {
    NodeOptions { cni: true, cri: true, agent: false, containerd: false, images: false, ..NodeOptions::default() }
}

fn a_cluster_is_set_up_joined_and_comes_back(node: &mut TestNode) -> Result<()> {
    let mut second = TestNode::boot(&options())?;
    let (mut first, mut second) = (Host::boot(node, ADDRESSES[0])?, Host::boot(&mut second, ADDRESSES[1])?);
    host::link([&first, &second])?;
    images::import_control_plane(first.node)?;
    images::import_name_server(first.node)?;
    for host in [&first, &second] {
        images::import(host.node)?;
    }

    first.kubeadm(&["init", "--config"], &initial(&first))?;
    // kubeadm was done once the apiserver answered; what it added runs, too.
    wait_mirrors(&first)?;
    for what in ["daemonset/kube-proxy", "deployment/coredns"] {
        let rolled_out = first.kubectl(&["-n", "kube-system", "rollout", "status", what, "--timeout=120s"]);
        rolled_out
            .with_context(|| format!("{:?}", first.kubectl(&["-n", "kube-system", "logs", what, "--tail=20"])))?;
    }
    second.kubeadm(&["join", "--config"], &joining(&second))?;
    first.kubectl(&["wait", "--for=condition=Ready", "node", second.node.name(), "--timeout=120s"])?;
    reach_a_service_by_name(&first, &second)?;

    let before = control_plane(&first)?;
    first.kill_everything()?;
    first.node.containerd.start()?;
    first.start_agent()?;
    wait_mirrors(&first).context("after everything was killed")?;
    let after = control_plane(&first)?;
    ensure!(before.len() == 4 && uids(&before) == uids(&after), "the mirrors are others: {before:?} {after:?}");
    first.kubectl(&["-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"])?;
    first.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"])?;
    reach(&first, "again")
}

/// The mirrors of the control plane's pods, as far as the apiserver has them.
fn control_plane(host: &Host<'_>) -> Result<Vec<Value>> {
    let list = host.kubectl(&["-n", "kube-system", "get", "pods", "-l", "tier=control-plane", "-o", "json"])?;
    let list: Value = serde_json::from_str(&list)?;
    list["items"].as_array().cloned().context("no list")
}

fn uids(pods: &[Value]) -> Vec<&Value> {
    pods.iter().map(|pod| &pod["metadata"]["uid"]).collect()
}

/// Waits until the apiserver shows the control plane as the node's own pods, each ready.
fn wait_mirrors(host: &Host<'_>) -> Result<()> {
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

/// A Deployment on that node, and its Service. Each of its pods answers with its name.
fn web(node: &str) -> [Value; 2] {
    let labels = json!({ "app": "web" });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [shell("main", "mkdir /w; hostname > /w/index.html; exec httpd -f -h /w")],
                },
            },
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80 }] },
    });
    [deployment, service]
}

/// A Deployment on the second node behind a Service, and a pod on the first that asks it by its name.
fn reach_a_service_by_name(first: &Host<'_>, second: &Host<'_>) -> Result<()> {
    let of_first = json!({ "hostNetwork": false, "nodeName": first.node.name() });
    let client = with(simple("client", IDLE), json!({ "spec": of_first }));
    let [deployment, service] = web(second.node.name());
    for object in [deployment, service, client] {
        first.apply(&object)?;
    }
    first.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    first.kubectl(&["wait", "--for=condition=Ready", "pod/client", "--timeout=120s"])?;
    reach(first, "by its name")
}

/// The pod on the first node asks the Service by its name, by way of CoreDNS and kube-proxy.
fn reach(host: &Host<'_>, when: &str) -> Result<()> {
    // A static busybox cannot do it all at once: its wget needs the C library's resolver.
    let script = "address=$(nslookup web.default.svc.cluster.local | sed -n 's/^Address: *//p' | tail -n 1)
        printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $address 80 | tail -n 1";
    let ask = ["exec", "client", "--", "sh", "-c", script];
    let answer = || host.kubectl(&ask).ok().filter(|answer| answer.starts_with("web-"));
    wait::until(A_WHILE, &format!("an answer of the Service, {when}"), answer).map(drop).with_context(|| {
        format!(
            "{:?}\n{}",
            host.kubectl(&ask),
            host.kubectl(&["get", "pods,endpointslices", "-A", "-o", "wide"]).unwrap_or_default()
        )
    })
}

fn registration(host: &Host<'_>) -> Value {
    json!({
        "name": host.node.name(),
        "criSocket": "unix:///run/containerd/containerd.sock",
        "kubeletExtraArgs": [{ "name": "node-ip", "value": host.address }],
    })
}

/// What kubeadm sets the cluster up from. The kubelet's part is the cluster's; cgroups are each node's, see [`Host`].
fn initial(host: &Host<'_>) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "bootstrapTokens": [{ "token": TOKEN }],
            "localAPIEndpoint": { "advertiseAddress": host.address },
            "nodeRegistration": registration(host),
        }),
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": images::VERSION,
            "imageRepository": images::REPOSITORY,
        }),
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "evictionHard": { "memory.available": "1Mi" },
        }),
        proxy_configuration(),
    ]
}

fn proxy_configuration() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        // Pods of one bridge answer past the node, which the kernel would only prevent with br_netfilter.
        "iptables": { "masqueradeAll": true },
        // The kernel's table is the whole machine's.
        "conntrack": { "maxPerCore": 0 },
    })
}

/// What kubeadm joins the cluster with.
fn joining(host: &Host<'_>) -> Vec<Value> {
    let discovery = json!({
        "token": TOKEN,
        "apiServerEndpoint": format!("{}:6443", ADDRESSES[0]),
        "unsafeSkipCAVerification": true,
    });
    vec![json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": { "bootstrapToken": discovery },
        "nodeRegistration": registration(host),
    })]
}
