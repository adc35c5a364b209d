//! PersistentVolumeClaims of manifests: their directories, with a real containerd.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_pod_waits_for_its_claim_and_keeps_its_files),
        case!(a_claim_in_use_is_removed_with_its_last_pod),
        case!(a_claim_that_is_gone_when_the_agent_starts),
        case!(an_applied_claim_is_listed_and_deleted),
        case!(a_stateful_set_keeps_the_files_of_each_ordinal),
    ])
}

fn claim(size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
    })
}

fn write_claim(node: &TestNode, size: &str) -> Result<()> {
    node.drop_text("claim.yaml", &claim(size).to_string())
}

/// A pod with the claim at `/data`, whose container runs `script`.
fn user(name: &str, script: &str, volume: Value) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": "files", "mountPath": "/data" }] });
    let container = with(shell("main", script), mounts);
    let volume = with(json!({ "claimName": "data" }), volume);
    pod(name, json!({ "containers": [container], "volumes": [{ "name": "files", "persistentVolumeClaim": volume }] }))
}

fn files(node: &TestNode, source: &str) -> PathBuf {
    node.agent.settings().root().join("persistent-volumes").join(source).join("default/data/data")
}

fn wait_files_gone(node: &TestNode, source: &str) -> Result<()> {
    wait::until(wait::SOON, "the claim's files are removed", || (!files(node, source).exists()).then_some(()))
}

fn a_pod_waits_for_its_claim_and_keeps_its_files(node: &mut TestNode) -> Result<()> {
    let context = json!({ "securityContext": { "fsGroup": 4000 } });
    let mut writer = user("web", IDLE, json!({}));
    writer["spec"] = with(writer["spec"].clone(), context);
    node.apply(&writer)?;
    node.wait_event("persistentvolumeclaim \"data\" not found")?;
    write_claim(node, "1Gi")?;
    node.wait_running("web")?;
    node.exec("web", "main", &["/bin/sh", "-c", "echo kept >/data/file"])?;
    ensure!(fs::read_to_string(files(node, "file").join("file"))? == "kept\n");
    ensure!(files(node, "file").metadata()?.gid() == 4000, "the directory has no fsGroup");
    let page = node.agent.cli(&["describe", "pvc/data"])?.success()?;
    let directory = files(node, "file").display().to_string();
    ensure!(page.contains("Bound") && page.contains(&directory) && page.contains("web-"), "{page}");

    node.remove("web")?;
    node.wait_gone("web")?;
    node.apply(&user("web", IDLE, json!({ "readOnly": true })))?;
    node.wait_running("web")?;
    let read =
        node.exec("web", "main", &["/bin/sh", "-c", "cat /data/file; touch /data/new 2>/dev/null || echo refused"])?;
    ensure!(read == "kept\nrefused\n", "{read}");

    write_claim(node, "1Mi")?;
    node.wait_event("field can not be less than previous value")?;
    write_claim(node, "2Gi")?;
    node.agent.kill();
    fs::remove_file(node.agent.settings().root().join("limpet.db"))?;
    node.agent.start()?;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["/bin/cat", "/data/file"])? == "kept\n", "lost with the database");
    node.remove("web")?;
    node.remove("claim")?;
    node.wait_gone("web")?;
    wait_files_gone(node, "file")
}

fn a_claim_in_use_is_removed_with_its_last_pod(node: &mut TestNode) -> Result<()> {
    write_claim(node, "1Gi")?;
    node.apply(&user("a", IDLE, json!({})))?;
    node.apply(&user(
        "b",
        "echo b >/data/b; trap 'sleep 1; echo end >/data/end; exit 0' TERM; sleep 1000 & wait",
        json!({}),
    ))?;
    node.wait_running("a")?;
    node.wait_running("b")?;
    wait::until(wait::SOON, "the other pod's file", || files(node, "file").join("b").exists().then_some(()))?;
    node.remove("claim")?;
    node.remove("a")?;
    node.wait_gone("a")?;
    // An agent that starts again knows of the pod only from containerd.
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("b")?;
    ensure!(files(node, "file").join("b").exists(), "removed in use");
    node.remove("b")?;
    node.wait_gone("b")?;
    wait_files_gone(node, "file")?;
    // A claim of the same name begins anew.
    write_claim(node, "1Gi")?;
    node.apply(&user("c", "ls -A /data; trap 'exit 0' TERM; sleep 1000 & wait", json!({})))?;
    node.wait_running("c")?;
    ensure!(node.exec("c", "main", &["/bin/ls", "-A", "/data"])?.is_empty(), "another claim's files");
    node.remove("c")?;
    node.wait_gone("c")
}

fn a_claim_that_is_gone_when_the_agent_starts(node: &mut TestNode) -> Result<()> {
    write_claim(node, "1Gi")?;
    node.apply(&user("web", IDLE, json!({})))?;
    node.wait_running("web")?;
    node.agent.kill();
    node.remove("claim")?;
    node.remove("web")?;
    node.agent.start()?;
    node.wait_gone("web")?;
    wait_files_gone(node, "file")
}

/// A StatefulSet `db` with a claim for each pod, which writes its own name once.
fn stateful_set(replicas: u32, image: &str, policy: &Value) -> Value {
    let script = "[ -e /data/name ] || hostname >/data/name; trap 'exit 0' TERM; sleep 100000 & wait";
    let container = with(
        shell("main", script),
        json!({ "image": image, "volumeMounts": [{ "name": "files", "mountPath": "/data" }] }),
    );
    let template = json!({
        "metadata": { "labels": { "app": "db" } },
        "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] },
    });
    let mut claim = claim("1Gi");
    claim["metadata"]["name"] = json!("files");
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "selector": { "matchLabels": { "app": "db" } }, "template": template, "replicas": replicas,
            "volumeClaimTemplates": [claim], "persistentVolumeClaimRetentionPolicy": policy,
        },
    })
}

/// The replica of that name, to which the node's name is not appended.
fn replica(node: &TestNode, name: &str) -> Option<Value> {
    node.pods().ok()?.into_iter().find(|pod| pod["metadata"]["name"] == name)
}

fn wait_end(node: &TestNode, name: &str) -> Result<()> {
    wait::until(wait::SOON, &format!("the end of {name}"), || replica(node, name).is_none().then_some(()))
}

fn a_stateful_set_keeps_the_files_of_each_ordinal(node: &mut TestNode) -> Result<()> {
    let claims = node.agent.settings().root().join("persistent-volumes/file/default");
    let name_in = |ordinal: u32| fs::read_to_string(claims.join(format!("files-db-{ordinal}/data/name")));
    let write = |node: &TestNode, replicas: u32, image: &str, policy: Value| {
        node.drop_text("db.yaml", &stateful_set(replicas, image, &policy).to_string())
    };
    let is_of = |pod: &Value, image: &str| {
        pod["status"]["phase"] == "Running" && pod["spec"]["containers"][0]["image"] == image
    };
    let wait_of = |node: &TestNode, name: &str, image: &str| {
        wait::until(wait::SOON, &format!("{name} of {image}"), || {
            replica(node, name).is_some_and(|pod| is_of(&pod, image)).then_some(())
        })
    };
    write(node, 2, image::V1, json!({}))?;
    wait_of(node, "db-1", image::V1)?;
    wait::until(wait::SOON, "both files", || (name_in(0).is_ok() && name_in(1).is_ok()).then_some(()))?;
    let marked = claims.join("files-db-1/data/mark");
    fs::write(&marked, "")?;
    write(node, 2, image::V2, json!({}))?;
    wait_of(node, "db-1", image::V2)?;
    wait_of(node, "db-0", image::V2)?;
    ensure!(marked.exists(), "lost by a rollout");

    node.agent.kill();
    fs::remove_file(node.agent.settings().root().join("limpet.db"))?;
    node.agent.start()?;
    wait_of(node, "db-1", image::V2)?;
    write(node, 1, image::V2, json!({}))?;
    wait_end(node, "db-1")?;
    ensure!(marked.exists(), "lost by a smaller number");
    node.remove("db")?;
    wait_end(node, "db-0")?;
    node.agent.kill();
    node.agent.start()?;
    write(node, 2, image::V2, json!({ "whenDeleted": "Delete", "whenScaled": "Delete" }))?;
    wait_of(node, "db-1", image::V2)?;
    ensure!(marked.exists(), "lost with its set");
    write(node, 1, image::V2, json!({ "whenDeleted": "Delete", "whenScaled": "Delete" }))?;
    wait::until(wait::SOON, "the files of db-1 are removed", || (!marked.exists()).then_some(()))?;
    ensure!(name_in(0).is_ok(), "those of db-0 too");
    node.remove("db")?;
    wait::until(wait::SOON, "the files of db-0 are removed", || name_in(0).is_err().then_some(()))
}

fn an_applied_claim_is_listed_and_deleted(node: &mut TestNode) -> Result<()> {
    let apply = |document: &Value| node.agent.cli_with_input(&["apply", "-f", "-"], document.to_string().as_bytes());
    ensure!(apply(&claim("1Gi"))?.success()? == "persistentvolumeclaim/data created\n");
    ensure!(apply(&claim("2Gi"))?.success()? == "persistentvolumeclaim/data configured\n");
    let smaller = apply(&claim("1Gi"))?;
    ensure!(smaller.code == Some(1) && smaller.stderr.contains("field can not be less"), "{smaller:?}");
    apply(&user("web", IDLE, json!({})))?.success()?;
    node.wait_pod("web", "running", |pod| pod["status"]["phase"] == "Running")?;
    let deleted = node.agent.cli(&["delete", "pvc", "data"])?;
    ensure!(deleted.success()? == "persistentvolumeclaim \"data\" deleted\n");
    ensure!(files(node, "push").exists(), "removed in use");
    node.agent.cli(&["delete", "pod", "web"])?.success()?;
    wait_files_gone(node, "push")
}
