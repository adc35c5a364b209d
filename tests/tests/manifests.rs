//! Manifests that are broken, refused or moved: what ran keeps running, and the reason is said.

use std::fs;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_broken_manifest_leaves_its_pod_running),
        case!(a_manifest_broken_while_the_agent_is_down),
        case!(a_field_limpet_does_not_act_on_is_refused),
        case!(two_files_that_claim_one_pod_are_both_told),
        case!(of_two_pods_with_one_uid_the_second_waits_for_the_end_of_the_first),
        case!(a_replaced_directory_is_followed),
        case!(validate_needs_no_agent).on(|node| node.agent = false),
    ])
}

const BROKEN: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers: [\n";

fn same_container(node: &TestNode, before: &Value) -> Result<()> {
    let now = node.wait_running("web")?;
    ensure!(container(&now, "main")["containerID"] == container(before, "main")["containerID"], "{}", now["status"]);
    ensure!(container(&now, "main")["restartCount"] == 0);
    Ok(())
}

/// Waits until `limpet pods` notes a rejection beside the pod.
fn wait_noted(node: &TestNode) -> Result<()> {
    let table = || node.agent.cli(&["pods"]).map(|reply| reply.stdout).unwrap_or_default();
    let noted = |table: &str| {
        table.lines().any(|line| {
            line.starts_with(&node.full_name("web")) && line.contains("Running") && line.contains("rejected")
        })
    };
    wait::until_true(wait::SOON, "the note of a rejection", || noted(&table()))
}

fn a_broken_manifest_leaves_its_pod_running(node: &mut TestNode) -> Result<()> {
    let good = simple("web", IDLE);
    node.apply(&good)?;
    let before = node.wait_running("web")?;
    node.drop_text("web.yaml", BROKEN)?;
    wait_noted(node)?;
    node.wait_event("web.yaml")?;
    same_container(node, &before)?;
    node.apply(&good)?;
    wait::until_true(wait::SOON, "the note to go", || {
        node.agent.cli(&["pods"]).is_ok_and(|reply| reply.stdout.contains("web") && !reply.stdout.contains("rejected"))
    })?;
    same_container(node, &before)
}

fn a_manifest_broken_while_the_agent_is_down(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    node.agent.kill();
    node.drop_text("web.yaml", BROKEN)?;
    node.agent.start()?;
    wait_noted(node)?;
    same_container(node, &before)?;
    // The last good version is what counts, not what happens to run: it is started where nothing runs.
    node.agent.kill();
    for task in node.containerd.tasks()? {
        limpet_tests::process::signal_pid(task.pid, rustix::process::Signal::KILL);
        wait::until_true(wait::SOON, "its end", || !limpet_tests::process::is_alive(task.pid))?;
    }
    node.agent.start()?;
    node.wait_running("web").map(drop)
}

fn a_field_limpet_does_not_act_on_is_refused(node: &mut TestNode) -> Result<()> {
    let probed = with(shell("main", IDLE), json!({ "livenessProbe": { "exec": { "command": ["true"] } } }));
    node.apply(&pod("probed", json!({ "containers": [probed] })))?;
    node.wait_event("livenessProbe")?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    ensure!(node.containerd.tasks()?.len() == 1, "it was run without its probe");
    Ok(())
}

/// What `limpet describe` says of the pod.
fn described(node: &TestNode, name: &str) -> Result<String> {
    node.agent.cli(&["describe", &node.full_name(name)])?.success()
}

fn two_files_that_claim_one_pod_are_both_told(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    node.drop_text("zzz.yaml", &simple("web", "echo second; sleep 100000").to_string())?;
    wait::until_true(wait::SOON, "the winner to be told", || {
        described(node, "web").is_ok_and(|text| text.contains("file zzz.yaml also defines this pod"))
    })?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains("zzz.yaml") && sources.contains("web.yaml"), "{sources}");
    node.wait_event("not run from file zzz.yaml")?;
    same_container(node, &before)?;
    fs::remove_file(node.agent.settings().manifests().join("zzz.yaml"))?;
    wait::until_true(wait::SOON, "nothing more to be said", || {
        described(node, "web").is_ok_and(|text| !text.contains("Duplicates"))
    })?;
    same_container(node, &before)
}

fn of_two_pods_with_one_uid_the_second_waits_for_the_end_of_the_first(node: &mut TestNode) -> Result<()> {
    let with_uid = |name: &str| {
        let mut manifest = simple(name, IDLE);
        manifest["metadata"]["uid"] = json!("0b5d2f1e-3c4a-4e5f-8a6b-7c8d9e0f1a2b");
        manifest
    };
    node.apply(&with_uid("web"))?;
    let first = node.wait_running("web")?;
    node.apply(&with_uid("zoo"))?;
    wait::until_true(wait::SOON, "the second to be told", || {
        described(node, "zoo").is_ok_and(|text| text.contains("not run: its uid"))
    })?;
    ensure!(node.containerd.tasks()?.len() == 1, "both run");
    same_container(node, &first)?;
    node.remove("web")?;
    node.wait_gone("web")?;
    let second = node.wait_running("zoo")?;
    ensure!(second["metadata"]["uid"] == first["metadata"]["uid"]);
    ensure!(container(&second, "main")["restartCount"] == 0, "{}", second["status"]);
    ensure!(node.containerd.tasks()?.len() == 1, "the first still runs");
    Ok(())
}

fn a_replaced_directory_is_followed(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    let dir = node.agent.settings().manifests();
    let aside = dir.with_file_name("manifests-old");
    fs::rename(&dir, &aside)?;
    fs::create_dir(&dir)?;
    node.apply(&simple("marker", IDLE))?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("marker")?;
    same_container(node, &before)?;
    node.remove("web")?;
    node.wait_gone("web")
}

fn validate_needs_no_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.drop_text("broken.yaml", BROKEN)?;
    node.drop_text(
        "typo.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: typo}\nspec:\n  containers:\n  - name: a\n    \
        image: registry.test/limpet/demo:v1\n    ports:\n    - containerPort: 80800\n",
    )?;
    let validate = |file: &str| {
        let path = node.agent.settings().manifests().join(file);
        node.agent.cli(&["validate", &path.display().to_string()])
    };
    let good = validate("web.yaml")?;
    ensure!(good.code == Some(0), "{good:?}");
    for (file, word) in [("broken.yaml", "broken.yaml:"), ("typo.yaml", "containerPort")] {
        let reply = validate(file)?;
        let said = format!("{}{}", reply.stdout, reply.stderr);
        ensure!(reply.code == Some(1) && said.contains(word), "{file}: {:?} {said}", reply.code);
    }
    Ok(())
}
