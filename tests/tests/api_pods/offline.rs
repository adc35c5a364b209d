//! A pod of the apiserver with a ConfigMap, a Secret and a token, on a node that starts without its apiserver.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, join};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, process, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{create, object, wait_reported};

pub(super) fn pods_start_without_an_apiserver_as_they_were_known_last(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let map = format!("settings-{}", node.name());
    cluster.create("/api/v1/namespaces/default/configmaps", &object(&map, json!({ "mode": "day" })))?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": map }, "stringData": { "key": "first" },
    });
    let secrets = "/api/v1/namespaces/default/secrets";
    cluster.create(secrets, &secret)?;
    let files = json!([{ "configMap": { "name": map } }, { "secret": { "name": map } },
        { "serviceAccountToken": { "path": "token" } }]);
    let main = with(
        shell("main", &format!("echo mode=$mode; {IDLE}")),
        json!({
            "envFrom": [{ "configMapRef": { "name": map } }],
            "env": [{ "name": "KEY", "valueFrom": { "secretKeyRef": { "name": map, "key": "key" } } }],
            "volumeMounts": [{ "name": "files", "mountPath": "/files" }],
        }),
    );
    let volumes = json!([{ "name": "files", "projected": { "sources": files } }]);
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    let before = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    let read = |node: &TestNode| node.exec("web", "main", &["sh", "-c", "cat /files/mode /files/key /files/token"]);
    cluster.patch(&format!("{secrets}/{map}"), &json!({ "stringData": { "key": "second" } }))?;
    wait::until_true(wait::SOON, "the edit in the volume", || {
        read(node).is_ok_and(|all| all.starts_with("daysecond"))
    })?;
    let known = read(node)?;
    let tokens = tokens(node)?;
    // One is the pod's own; the other is that of the service account's volume, which the apiserver has added.
    ensure!(tokens["count"] == 2 && tokens["firstExpiry"].is_string(), "{tokens}");
    cluster.stop()?;
    node.agent.kill();
    node.agent.start()?;
    // The pod is adopted as it is, and when its container ends, it is started again from what is known.
    ensure!(container_id(&node.wait_running("web")?, "main")? == before, "restarted");
    end_container(node, &before)?;
    let second = wait_another(node, &before)?;
    node.wait_logged("web", "main", "mode=day")?;
    // The same holds if it ends while there is no agent.
    node.agent.kill();
    end_container(node, &second)?;
    node.agent.start()?;
    wait_another(node, &second)?;
    ensure!(node.exec("web", "main", &["sh", "-c", "echo $mode $KEY"])? == "day second\n");
    let now = read(node)?;
    ensure!(now == known, "{now} was {known}");
    let kept = self::tokens(node)?;
    ensure!(kept == tokens, "{kept} were {tokens}");
    cluster.start()?;
    let now = wait_reported(node, &cluster, "web")?;
    ensure!(container(&now, "main")["restartCount"] == 2, "{now}");
    Ok(())
}

/// The part of `limpet status` about the tokens of pods.
fn tokens(node: &TestNode) -> Result<Value> {
    let document: Value = serde_json::from_str(&node.agent.cli(&["status", "-o", "json"])?.stdout)?;
    Ok(document["tokens"].clone())
}

fn end_container(node: &TestNode, id: &str) -> Result<()> {
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
    process::signal_pid(task.pid, Signal::KILL);
    Ok(())
}

/// The id of the pod's container once another one than `before` runs.
fn wait_another(node: &TestNode, before: &str) -> Result<String> {
    let next = node.wait_pod("web", "another container that runs", |pod| {
        container_id(pod, "main").is_ok_and(|id| id != before) && pod["status"]["phase"] == "Running"
    })?;
    container_id(&next, "main")
}
