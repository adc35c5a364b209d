//! Edits of image and resources: what is edited runs, whatever its container is for and whether or not it had finished.

use std::fs;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::image::V2;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(an_edit_of_a_container_that_may_stay_stopped_makes_a_new_pod),
        case!(an_edit_of_what_has_finished_runs_it),
        case!(an_edit_of_an_init_container_makes_a_new_pod),
        case!(an_edit_while_the_agent_is_away_is_carried_out),
    ])
}

/// A container that writes its name and its image's version into `/shared/runs` when it runs.
fn noted(name: &str, then: &str) -> Value {
    let script = format!("echo {name} $(cat /version) >> /shared/runs; {then}");
    with(shell(name, &script), json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }))
}

fn job(node: &TestNode, spec: Value) -> Result<Value> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    Ok(pod("job", with(spec, json!({ "volumes": [{ "name": "shared", "hostPath": { "path": shared } }] }))))
}

/// `manifest` with the second image in the container at `pointer`.
fn edited(manifest: &Value, pointer: &str) -> Value {
    let mut edited = manifest.clone();
    if let Some(container) = edited.pointer_mut(pointer) {
        container["image"] = V2.into();
    }
    edited
}

fn runs(node: &TestNode) -> String {
    fs::read_to_string(node.dir().join("shared/runs")).unwrap_or_default()
}

fn wait_runs(node: &TestNode, expected: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{expected:?} to have run"), || runs(node) == expected)
}

/// What `limpet diff` says of the manifest.
fn forecast(node: &TestNode, manifest: &Value) -> Result<String> {
    let file = node.dir().join("edited.yaml");
    fs::write(&file, manifest.to_string())?;
    Ok(node.agent.cli(&["diff", "-f", &file.to_string_lossy()])?.stdout)
}

fn an_edit_of_a_container_that_may_stay_stopped_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    let manifest = job(node, json!({ "restartPolicy": "OnFailure", "containers": [noted("main", IDLE)] }))?;
    node.apply(&manifest)?;
    let before = node.wait_running("job")?;
    let edited = edited(&manifest, "/spec/containers/0");
    let said = forecast(node, &edited)?;
    ensure!(said.contains("recreates: the pod (container main is not started again under"), "{said}");
    node.apply(&edited)?;
    wait_runs(node, "main 1\nmain 2\n")?;
    let after = node.wait_running("job")?;
    ensure!(container(&after, "main")["restartCount"] == 0, "{}", after["status"]);
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "its uid is of what cannot change in place");
    let history = node.agent.cli(&["history", "job"])?.success()?;
    ensure!(history.contains("recreated the pod") && !history.contains("restarted main"), "{history}");
    Ok(())
}

fn an_edit_of_what_has_finished_runs_it(node: &mut TestNode) -> Result<()> {
    let containers = json!([noted("main", "exit 0"), noted("side", "exit 0")]);
    let manifest = job(node, json!({ "restartPolicy": "Never", "containers": containers }))?;
    node.apply(&manifest)?;
    let done = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    node.wait_pod("job", "completed", done)?;
    fs::remove_file(node.dir().join("shared/runs"))?;
    node.apply(&edited(&manifest, "/spec/containers/0"))?;
    let both = || {
        let text = runs(node);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines == ["main 2", "side 1"]
    };
    wait::until_true(wait::SOON, "both to have run again", both)?;
    let after = node.wait_pod("job", "completed again", done)?;
    ensure!(container(&after, "main")["image"] == V2, "{}", after["status"]);
    Ok(())
}

fn an_edit_of_an_init_container_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    let spec = json!({ "initContainers": [noted("prepare", "true")], "containers": [noted("main", IDLE)] });
    let manifest = job(node, spec)?;
    node.apply(&manifest)?;
    node.wait_running("job")?;
    let edited = edited(&manifest, "/spec/initContainers/0");
    let said = forecast(node, &edited)?;
    ensure!(said.contains("recreates: the pod (init container prepare runs again only in a new pod)"), "{said}");
    node.apply(&edited)?;
    wait_runs(node, "prepare 1\nmain 1\nprepare 2\nmain 1\n")
}

fn an_edit_while_the_agent_is_away_is_carried_out(node: &mut TestNode) -> Result<()> {
    let spec = json!({
        "restartPolicy": "Never", "initContainers": [noted("prepare", "true")], "containers": [noted("main", "exit 3")],
    });
    let manifest = job(node, spec)?;
    node.apply(&manifest)?;
    node.wait_pod("job", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    node.agent.kill();
    node.apply(&edited(&manifest, "/spec/containers/0"))?;
    node.agent.start()?;
    wait_runs(node, "prepare 1\nmain 1\nprepare 1\nmain 2\n")?;
    node.agent.kill();
    node.agent.start()?;
    node.apply(&pod("mark", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("mark")?;
    ensure!(runs(node) == "prepare 1\nmain 1\nprepare 1\nmain 2\n", "{}", runs(node));
    Ok(())
}
