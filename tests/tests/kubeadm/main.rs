//! kubeadm, unchanged, sets up a cluster whose nodes run limpet in kubelet's place: with kubeadm's files and flags
//! limpet runs the control plane from the manifest directory, joins it, and runs what kubeadm adds to it. A second node
//! joins by a token. Another cluster gets its network from static pods.

mod static_network;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::kubeadm::host::{self, Host};
use limpet_tests::kubeadm::{A_WHILE, ADDRESSES, control_plane, images, initial, joining, options, uids, wait_mirrors};
use limpet_tests::manifest::{IDLE, shell, simple, with};
use limpet_tests::node::NodeOptions;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

use self::static_network::kube_proxy_and_a_network_daemon_are_static_pods;

fn main() -> ExitCode {
    let without_agent = |node: &mut NodeOptions| *node = options();
    suite::run([
        case!(a_cluster_is_set_up_joined_and_comes_back).on(without_agent),
        case!(kube_proxy_and_a_network_daemon_are_static_pods).on(without_agent),
    ])
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
    // kubeadm has finished once the apiserver answered. What it has added runs, too.
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

/// A Deployment on the node, and its Service. Each of its pods answers with its name.
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

/// Runs a Deployment on the second node behind a Service, and a pod on the first that requests it by its name.
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

/// Has the pod on the first node request the Service by its name, through CoreDNS and kube-proxy.
fn reach(host: &Host<'_>, when: &str) -> Result<()> {
    // A static busybox cannot do this in one step, because its wget needs the C library's resolver.
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
