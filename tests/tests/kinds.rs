//! Workloads of the node's own: what their controllers make of them, with a real containerd.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_deployment_is_scaled_and_rolled_out),
        case!(a_rollout_outlives_the_agent_and_the_database),
        case!(an_applied_deployment_is_stored_and_deleted),
        case!(a_daemon_set_of_a_broken_file_stays),
    ])
}

/// A workload called `web` whose containers run `script`, with further fields of its spec.
fn workload(kind: &str, image: &str, script: &str, spec: Value) -> Value {
    let container = with(shell("main", script), json!({ "image": image }));
    let template = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] },
    });
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": "web" },
        "spec": with(json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template }), spec),
    })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn image_of(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

/// The workload's pods.
fn pods(node: &TestNode) -> Result<Vec<Value>> {
    let owned = |pod: &Value| pod["metadata"]["annotations"]["limpet.dev/owner"].is_string();
    Ok(node.pods()?.into_iter().filter(owned).collect())
}

/// Waits until the workload's pods are as described.
fn wait_pods(node: &TestNode, what: &str, accept: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    wait::until(wait::SOON, what, || pods(node).ok().filter(|pods| accept(pods)))
        .with_context(|| format!("{:#}", Value::from(pods(node).unwrap_or_default())))
}

/// Waits until there are `count` pods of `image`, all of them ready, and no others.
fn wait_ready(node: &TestNode, count: usize, image: &str) -> Result<Vec<Value>> {
    wait_pods(node, &format!("{count} ready pods of {image}"), |pods| {
        pods.len() == count && pods.iter().all(|pod| is_ready(pod) && image_of(pod) == image)
    })
}

fn containers(pods: &[Value]) -> Result<Vec<String>> {
    let mut ids = pods.iter().map(|pod| container_id(pod, "main")).collect::<Result<Vec<_>>>()?;
    ids.sort();
    Ok(ids)
}

fn write(node: &TestNode, workload: &Value) -> Result<()> {
    node.drop_text("web.yaml", &workload.to_string())
}

fn a_deployment_is_scaled_and_rolled_out(node: &mut TestNode) -> Result<()> {
    let deployment = |image: &str, replicas: u32| workload("Deployment", image, IDLE, json!({ "replicas": replicas }));
    write(node, &deployment(image::V1, 2))?;
    let first = wait_ready(node, 2, image::V1)?;
    let (metadata, ids) = (&first[0]["metadata"], containers(&first)?);
    let hash = metadata["labels"]["pod-template-hash"].as_str().context("no pod-template-hash")?;
    let name = metadata["name"].as_str().unwrap_or_default();
    ensure!(name.starts_with(&format!("web-{hash}-")) && name.len() == "web--".len() + hash.len() + 5, "{name}");
    ensure!(metadata["ownerReferences"][0]["name"] == format!("web-{hash}"), "{metadata}");
    let described = node.agent.cli(&["describe", name])?.success()?;
    ensure!(described.contains(&format!("ReplicaSet/web-{hash}")), "{described}");

    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 2, image::V1)?)? == ids, "restarted by the agent's restart");
    write(node, &deployment(image::V1, 3))?;
    let more = containers(&wait_ready(node, 3, image::V1)?)?;
    ensure!(ids.iter().all(|id| more.contains(id)), "restarted by a new number of replicas");
    write(node, &deployment(image::V2, 3))?;
    let updated = containers(&wait_ready(node, 3, image::V2)?)?;
    ensure!(updated.iter().all(|id| !more.contains(id)), "{updated:?}");
    node.remove("web")?;
    wait_pods(node, "no pods", <[Value]>::is_empty)?;
    node.wait_nothing_runs()
}

/// An update that does not get ready, with kills of the agent in the middle.
fn a_rollout_outlives_the_agent_and_the_database(node: &mut TestNode) -> Result<()> {
    let strategy = json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    let spec = json!({ "replicas": 2, "strategy": strategy });
    write(node, &workload("Deployment", image::V1, IDLE, spec.clone()))?;
    let first = containers(&wait_ready(node, 2, image::V1)?)?;
    let mut broken = workload("Deployment", image::V2, IDLE, spec.clone());
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["/bin/false"] } });
    write(node, &broken)?;
    let is_stuck = |pods: &[Value]| {
        let running = |pod: &&Value| container_id(pod, "main").is_ok();
        pods.len() == 3
            && pods.iter().filter(running).count() == 3
            && pods.iter().filter(|pod| is_ready(pod)).count() == 2
    };
    let stuck = containers(&wait_pods(node, "a rollout that is stuck", is_stuck)?)?;
    ensure!(first.iter().all(|id| stuck.contains(id)), "an old pod has gone: {first:?} {stuck:?}");
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_pods(node, "the same after a kill", is_stuck)?)? == stuck, "restarted");
    node.agent.kill();
    fs::remove_file(node.agent.settings().root().join("limpet.db"))?;
    node.agent.start()?;
    ensure!(containers(&wait_pods(node, "the same without the database", is_stuck)?)? == stuck, "restarted");
    write(node, &workload("Deployment", image::V2, IDLE, spec))?;
    wait_ready(node, 2, image::V2).map(drop)
}

fn an_applied_deployment_is_stored_and_deleted(node: &mut TestNode) -> Result<()> {
    let deployment = workload("Deployment", image::V1, IDLE, json!({ "replicas": 1 })).to_string();
    let apply = |text: &str| node.agent.cli_with_input(&["apply", "-f", "-"], text.as_bytes());
    ensure!(apply(&deployment)?.success()? == "deployment.apps/web created\n");
    let ids = containers(&wait_ready(node, 1, image::V1)?)?;
    ensure!(apply(&deployment)?.success()? == "deployment.apps/web unchanged\n");
    let refused = apply(&deployment.replace("\"replicas\":1", "\"replicas\":-1"))?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("spec.replicas"), "{refused:?}");
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 1, image::V1)?)? == ids, "restarted");
    let said = node.agent.cli(&["delete", "deployment", "web"])?.success()?;
    ensure!(said == "deployment.apps \"web\" deleted\n", "{said}");
    wait_pods(node, "no pods", <[Value]>::is_empty).map(drop)
}

fn a_daemon_set_of_a_broken_file_stays(node: &mut TestNode) -> Result<()> {
    let daemon = |image: &str| workload("DaemonSet", image, IDLE, json!({}));
    write(node, &daemon(image::V1))?;
    let ids = containers(&wait_ready(node, 1, image::V1)?)?;
    let mut broken = daemon(image::V2);
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = json!("typo");
    write(node, &broken)?;
    node.wait_event("spec.template.spec.containers[0].imagee")?;
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 1, image::V1)?)? == ids, "restarted");
    write(node, &daemon(image::V2))?;
    wait_ready(node, 1, image::V2).map(drop)
}
