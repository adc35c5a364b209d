//! The life of a pod: it starts, is read, edited and deleted, next to others.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::V2;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_manifest_becomes_a_running_pod),
        case!(exec_carries_input_output_and_exit_code),
        case!(an_image_edit_touches_one_container),
        case!(an_edit_of_labels_touches_no_container),
        case!(an_edit_of_the_environment_makes_a_new_pod),
        case!(deletion_gives_the_grace_and_leaves_nothing),
        case!(pods_run_side_by_side),
        case!(a_hundred_manifests_at_once),
    ])
}

/// A pod that writes into `/shared`, a directory of the node's: when it starts, when it gets SIGTERM, when it ends.
fn diary(node: &TestNode, name: &str, env: &str) -> Result<Value> {
    fs::create_dir_all(node.dir().join("shared"))?;
    let script = "echo start $DAY >> /shared/diary; \
        trap 'echo TERM $DAY >> /shared/diary; sleep 1; echo end $DAY >> /shared/diary; exit 0' TERM; \
        sleep 100000 & wait";
    let container = with(
        shell("main", script),
        json!({
            "env": [{ "name": "DAY", "value": env }],
            "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }],
        }),
    );
    Ok(pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
            "volumes": [{ "name": "shared", "hostPath": { "path": node.dir().join("shared") } }],
        }),
    ))
}

fn read_diary(node: &TestNode) -> String {
    fs::read_to_string(node.dir().join("shared/diary")).unwrap_or_default()
}

fn a_manifest_becomes_a_running_pod(node: &mut TestNode) -> Result<()> {
    node.drop_text(
        "web.yaml",
        "# as people write them\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {app: web}\nspec:\n  \
         hostNetwork: true\n  containers:\n  - name: main\n    image: registry.test/limpet/demo:v1\n    \
         command: [/bin/sh, -c, \"echo hello; sleep 100000\"]\n",
    )?;
    let web = node.wait_running("web")?;
    ensure!(web["metadata"]["namespace"] == "default" && web["spec"]["nodeName"] == node.name(), "{web}");
    ensure!(web["metadata"]["annotations"]["kubernetes.io/config.source"] == "file", "{}", web["metadata"]);
    ensure!(container(&web, "main")["ready"] == true, "{}", web["status"]);
    ensure!(node.wait_logged("web", "main", "hello")? == "hello\n");

    let table = node.agent.cli(&["pods"])?.success()?;
    let line = table.lines().find(|line| line.starts_with(&node.full_name("web"))).context("no line of its own")?;
    ensure!(line.contains("1/1") && line.contains("Running") && line.contains("web.yaml"), "{table}");
    let described = node.agent.cli(&["describe", &node.full_name("web")])?.success()?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    ensure!(described.contains(uid) && described.contains("registry.test/limpet/demo:v1"), "{described}");

    let log = node.agent.settings().pod_logs().join(format!("default_{}_{uid}/main/0.log", node.full_name("web")));
    let text = fs::read_to_string(&log).with_context(|| format!("{}", log.display()))?;
    ensure!(text.ends_with(" stdout F hello\n"), "{text:?}");
    let id = container_id(&web, "main")?;
    let link = node.agent.settings().container_logs().join(format!("{}_default_main-{id}.log", node.full_name("web")));
    ensure!(fs::canonicalize(&link)? == fs::canonicalize(&log)?, "{}", link.display());
    ensure!(node.agent.log().contains("SyncLoop ADD"), "no SyncLoop line");
    Ok(())
}

fn exec_carries_input_output_and_exit_code(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["cat", "/version"])? == "1\n");
    let name = node.full_name("web");
    let failing = node.agent.cli(&["exec", &name, "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!((failing.code, &*failing.stdout, &*failing.stderr) == (Some(7), "out\n", "err\n"), "{failing:?}");
    let echo = node.agent.cli_with_input(&["exec", "-i", &name, "-c", "main", "--", "cat"], b"through and back\n")?;
    ensure!(echo.success()? == "through and back\n");
    let absent = node.agent.cli(&["exec", &name, "-c", "main", "--", "/no/such/program"])?;
    ensure!(absent.code != Some(0) && !absent.stderr.is_empty(), "{absent:?}");
    Ok(())
}

fn an_image_edit_touches_one_container(node: &mut TestNode) -> Result<()> {
    let with_image = |image: Value| {
        let main = with(shell("main", IDLE), image);
        pod("web", json!({ "containers": [main, shell("side", IDLE)] }))
    };
    node.apply(&with_image(json!({})))?;
    let before = node.wait_running("web")?;
    node.apply(&with_image(json!({ "image": V2 })))?;
    let old = container_id(&before, "main")?;
    let after = node.wait_pod("web", "running its second image", |pod| {
        let main = container(pod, "main");
        main["state"]["running"].is_object() && container_id(pod, "main").is_ok_and(|id| id != old)
    })?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"]);
    ensure!(container(&after, "side")["containerID"] == container(&before, "side")["containerID"]);
    ensure!(container(&after, "side")["restartCount"] == 0, "{}", after["status"]);
    ensure!(node.exec("web", "main", &["cat", "/version"])? == "2\n");
    wait::until_true(wait::SOON, "two tasks", || node.containerd.tasks().is_ok_and(|tasks| tasks.len() == 2))
}

fn an_edit_of_labels_touches_no_container(node: &mut TestNode) -> Result<()> {
    let mut manifest = simple("web", IDLE);
    node.apply(&manifest)?;
    let before = node.wait_running("web")?;
    let pid = node.containerd.tasks()?.first().map(|task| task.pid);
    manifest["metadata"]["labels"] = json!({ "app": "shop" });
    node.apply(&manifest)?;
    let after = node.wait_pod("web", "labelled", |pod| pod["metadata"]["labels"]["app"] == "shop")?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"]);
    ensure!(after["status"] == before["status"], "{} {}", before["status"], after["status"]);
    let log = node.agent.log();
    let line = log.lines().find(|line| line.contains("SyncLoop UPDATE")).context("no SyncLoop UPDATE")?;
    ensure!(line.contains("labels") && !line.contains("container"), "{line}");
    // The restarts of an update are done before the next edit of the same pod takes effect.
    manifest["metadata"]["annotations"] = json!({ "note": "a" });
    node.apply(&manifest)?;
    node.wait_pod("web", "annotated", |pod| pod["metadata"]["annotations"]["note"] == "a")?;
    ensure!(node.containerd.tasks()?.first().map(|task| task.pid) == pid, "its process is another one");
    Ok(())
}

fn an_edit_of_the_environment_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    node.apply(&diary(node, "web", "1")?)?;
    let before = node.wait_running("web")?;
    node.apply(&diary(node, "web", "2")?)?;
    let after = node.wait_pod("web", "made again", |pod| {
        pod["metadata"]["uid"] != before["metadata"]["uid"] && container(pod, "main")["state"]["running"].is_object()
    })?;
    wait::until_true(wait::SOON, "the second entry", || read_diary(node).ends_with("start 2\n"))?;
    ensure!(read_diary(node) == "start 1\nTERM 1\nend 1\nstart 2\n", "{}", read_diary(node));
    ensure!(container(&after, "main")["restartCount"] == 0, "{}", after["status"]);
    ensure!(node.pods()?.len() == 1);
    Ok(())
}

fn deletion_gives_the_grace_and_leaves_nothing(node: &mut TestNode) -> Result<()> {
    node.apply(&diary(node, "web", "1")?)?;
    node.apply(&simple("stubborn", "trap '' TERM; while :; do sleep 1000; done"))?;
    for name in ["web", "stubborn"] {
        node.wait_running(name)?;
        node.remove(name)?;
    }
    for name in ["web", "stubborn"] {
        node.wait_gone(name)?;
    }
    ensure!(read_diary(node) == "start 1\nTERM 1\nend 1\n", "{}", read_diary(node));
    node.wait_nothing_runs()
}

fn pods_run_side_by_side(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("one", IDLE))?;
    node.apply(&simple("two", IDLE))?;
    let (first, two) = (node.wait_running("one")?, node.wait_running("two")?);
    ensure!(first["metadata"]["uid"] != two["metadata"]["uid"]);
    node.remove("one")?;
    node.wait_gone("one")?;
    let still = node.wait_running("two")?;
    ensure!(container(&still, "main") == container(&two, "main"), "{}", still["status"]);
    Ok(())
}

fn a_hundred_manifests_at_once(node: &mut TestNode) -> Result<()> {
    let names: Vec<_> = (0..100).map(|number| format!("pod-{number:03}")).collect();
    for name in &names {
        node.apply(&simple(name, "exec sleep 100000"))?;
    }
    wait::until_true(Duration::from_secs(240), "a hundred running pods", || {
        node.pods().is_ok_and(|pods| pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count() == 100)
    })?;
    ensure!(node.containerd.tasks()?.len() == 100);
    for name in &names {
        node.remove(name)?;
    }
    wait::until_true(Duration::from_secs(240), "the end of them all", || {
        node.pods().is_ok_and(|pods| pods.is_empty())
    })?;
    node.wait_nothing_runs()
}
