//! kubelet's Pods API: a client of the socket, and a real apiserver as the judge of the encoding.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_node_api::pods::pods_client::PodsClient;
use limpet_node_api::pods::{EventType, GetPodRequest, ListPodsRequest, WatchPodsRequest};
use limpet_tests::cluster::{self, join};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::{TestNode, process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{create, object, path, wait_deleted, wait_reported};

fn socket(node: &TestNode) -> PathBuf {
    node.agent.settings().root().join("pods-api/pods-api.sock")
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The pod of that UID as the Pods API returns it.
fn handed_out(node: &TestNode, uid: &str) -> Result<Vec<u8>> {
    runtime()?.block_on(async {
        let mut client = PodsClient::new(containerd_client::connect(socket(node)).await?);
        Ok(client.get_pod(GetPodRequest { pod_uid: uid.to_owned() }).await?.into_inner().pod)
    })
}

/// Replaces the pod at the apiserver by what the node returns. The apiserver refuses nearly every difference of the
/// spec, and shows the status that it has read.
pub(super) fn the_pods_api_returns_what_the_apiserver_decodes(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    cluster.create("/api/v1/namespaces/default/configmaps", &object("settings", json!({ "mode": "edge" })))?;
    create(node, &cluster, &pod("rich", rich()))?;
    let shown = wait_reported(node, &cluster, "rich")?;
    let bytes = handed_out(node, shown["metadata"]["uid"].as_str().context("no UID")?)?;
    let path = path(node, "rich");
    let replaced = cluster.try_encoded(&path, "Pod", &bytes)?;
    ensure!(replaced["spec"] == shown["spec"], "{}\n{}", replaced["spec"], shown["spec"]);
    let reported = cluster.try_encoded(&format!("{path}/status"), "Pod", &bytes)?;
    ensure!(reported["status"] == shown["status"], "{}\n{}", reported["status"], shown["status"]);
    cluster.delete(&path)?;
    wait_deleted(node, &cluster, "rich")
}

/// A spec with every kind of value: nested, inline, maps, quantities, numbers and names of ports.
fn rich() -> Value {
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 3600, "timeoutSeconds": 60 });
    let settings = json!({
        "env": [
            { "name": "MODE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "mode", "optional": true } } },
            { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1m" } } },
        ],
        "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "settings" } }],
        "ports": [{ "name": "web", "containerPort": 8080, "protocol": "UDP" }],
        "readinessProbe": probe,
        "lifecycle": { "postStart": { "exec": { "command": ["true"] } }, "preStop": { "sleep": { "seconds": 0 } } },
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "cpu": "0.5", "memory": "64Mi" } },
        "securityContext": { "runAsUser": 0, "capabilities": { "drop": ["NET_RAW"] }, "allowPrivilegeEscalation": false },
        "volumeMounts": [
            { "name": "scratch", "mountPath": "/scratch", "subPath": "inner" },
            { "name": "all", "mountPath": "/all", "readOnly": true },
        ],
    });
    json!({
        "hostNetwork": false,
        "terminationGracePeriodSeconds": 1,
        "securityContext": { "fsGroup": 2000, "sysctls": [{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" }] },
        "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["gateway", "gw"] }],
        "dnsPolicy": "None",
        "dnsConfig": { "nameservers": ["192.0.2.53"], "options": [{ "name": "ndots", "value": "2" }] },
        "tolerations": [{ "key": "edge", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 }],
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "initContainers": [shell("first", "true")],
        "containers": [with(shell("main", IDLE), settings)],
        "volumes": [
            { "name": "scratch", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
            { "name": "all", "projected": { "defaultMode": 288, "sources": [
                { "configMap": { "name": "settings", "items": [{ "key": "mode", "path": "mode", "mode": 256 }] } },
                { "downwardAPI": { "items": [{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }] } },
            ] } },
        ],
    })
}

/// The text that protoc makes of a Pod in protobuf.
fn decoded(pod: &[u8]) -> Result<String> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/node-api/proto/core/v1");
    let mut protoc = Command::new("protoc");
    protoc.arg("--proto_path").arg(definitions).args(["--decode", "pod.Pod", "pod.proto"]);
    let output = process::run(&mut protoc, pod)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

pub(super) fn the_pods_api_lists_and_watches_pods(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let web = node.wait_running("web")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?.to_owned();
    runtime()?.block_on(async {
        let mut client = PodsClient::new(containerd_client::connect(socket(node)).await?);
        let pods = client.list_pods(ListPodsRequest {}).await?.into_inner().pods;
        let [listed] = &pods[..] else { anyhow::bail!("{} pods", pods.len()) };
        let text = decoded(listed)?;
        ensure!(text.contains(&format!("uid: \"{uid}\"")) && text.contains("phase: \"Running\""), "{text}");
        let got = client.get_pod(GetPodRequest { pod_uid: uid }).await?.into_inner();
        ensure!(&got.pod == listed, "{}", decoded(&got.pod)?);
        let Err(missing) = client.get_pod(GetPodRequest { pod_uid: "none".to_owned() }).await else {
            anyhow::bail!("a pod that is not there was shown")
        };
        ensure!(missing.message() == "pod with UID none not found", "{missing}");

        let mut watch = client.watch_pods(WatchPodsRequest {}).await?.into_inner();
        let first = watch.message().await?.context("no event")?;
        ensure!(first.r#type() == EventType::Added && &first.pod == listed, "{first:?}");
        let synced = watch.message().await?.context("no event")?;
        ensure!(synced.r#type() == EventType::InitialSyncComplete && synced.pod.is_empty(), "{synced:?}");

        node.apply(&simple("late", IDLE))?;
        let name = format!("name: \"{}\"", node.full_name("late"));
        let mut seen = Vec::new();
        loop {
            let event = watch.message().await?.context("the watch ended")?;
            let text = decoded(&event.pod)?;
            ensure!(text.contains(&name), "{text}");
            seen.push(event.r#type());
            match event.r#type() {
                // Once the pod runs, its manifest is removed.
                EventType::Modified if text.contains("phase: \"Running\"") => drop(node.remove("late")),
                EventType::Deleted => break,
                _ => {}
            }
        }
        ensure!(seen.first() == Some(&EventType::Added) && seen.contains(&EventType::Modified), "{seen:?}");
        Ok(())
    })
}
