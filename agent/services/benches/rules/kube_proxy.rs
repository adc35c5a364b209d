//! The same by kube-proxy, with a real apiserver: Services without a selector, whose EndpointSlices the bench writes.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use limpet_tests::cluster::kube_proxy::KubeProxy;
use limpet_tests::cluster::{Cluster, NODE_ADDRESS};
use limpet_tests::{need, wait};
use serde_json::{Value, json};

use crate::pods::{PORT, Pods};
use crate::{ENDPOINTS, answers_after, private, rates, row};

const NODE: &str = "node";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
/// How many Services it has when its memory is measured.
const MANY: usize = 100;

/// The rows of kube-proxy. The last one has its memory, and no rate.
pub(crate) fn measure(dir: &Path, pods: &Pods, turns: usize) -> Vec<Value> {
    let Some(mut cluster) = need::need(Cluster::boot()) else { return Vec::new() };
    cluster
        .create("/api/v1/nodes", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }))
        .unwrap();
    let addresses = json!([{ "type": "InternalIP", "address": NODE_ADDRESS }]);
    cluster.patch(&format!("/api/v1/nodes/{NODE}/status"), &json!({ "status": { "addresses": addresses } })).unwrap();
    let mut proxy = KubeProxy::prepare(&cluster, NODE, dir).unwrap();
    let mut rows = Vec::new();
    proxy.start().unwrap();
    for endpoints in ENDPOINTS {
        let name = format!("with-{endpoints}");
        let address = create(&cluster, &name);
        cluster.create(SLICES, &slice(&name, pods, endpoints)).unwrap();
        answers_after(address, Instant::now());
        // From a change of the slice: the only endpoint, or all of them, are not ready, and are again.
        set_ready(&cluster, &name, pods, endpoints, false);
        wait::until_true(wait::SOON, "no endpoint", || crate::pods::connect(address).is_err()).unwrap();
        // kube-proxy waits a second between two changes, unless the last one was longer ago.
        wait::pass(Duration::from_secs(3)).unwrap();
        let begun = Instant::now();
        set_ready(&cluster, &name, pods, endpoints, true);
        let follows = answers_after(address, begun);
        rows.push(row("kube-proxy", endpoints, follows, &rates(pods, address, turns)));
    }
    for number in 0..MANY {
        let name = format!("many-{number}");
        create(&cluster, &name);
        cluster.create(SLICES, &slice(&name, pods, 1)).unwrap();
    }
    wait::pass(Duration::from_secs(15)).unwrap();
    let kib = proxy.pid().map(private).unwrap_or_default();
    println!("kube-proxy with {MANY} more Services: {:.1} MiB private", kib as f64 / 1024.0);
    rows.push(json!({ "who": "kube-proxy", "services": MANY, "private_kib": kib }));
    proxy.stop().unwrap();
    cluster.lose_power();
    rows
}

fn create(cluster: &Cluster, name: &str) -> SocketAddr {
    let spec = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": PORT }] });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec });
    cluster.create(SERVICES, &service).unwrap();
    let stored = cluster.get(&format!("{SERVICES}/{name}")).unwrap().unwrap();
    let address: IpAddr = stored["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    (address, 80).into()
}

fn endpoints(pods: &Pods, count: usize, ready: bool) -> Value {
    let end = |number: usize| json!({ "addresses": [pods.address(number).ip()], "conditions": { "ready": ready } });
    (0..count).map(end).collect()
}

fn slice(service: &str, pods: &Pods, count: usize) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": service, "labels": { "kubernetes.io/service-name": service } },
        "endpoints": endpoints(pods, count, true), "ports": [{ "name": "http", "port": PORT, "protocol": "TCP" }],
    })
}

fn set_ready(cluster: &Cluster, name: &str, pods: &Pods, count: usize, ready: bool) {
    cluster.patch(&format!("{SLICES}/{name}"), &json!({ "endpoints": endpoints(pods, count, ready) })).unwrap();
}
