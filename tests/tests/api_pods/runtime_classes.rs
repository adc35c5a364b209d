//! RuntimeClasses: a pod of the apiserver runs in the runtime that the node's configuration has for its class's
//! handler.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, cluster, process, wait};
use rustix::process::Signal;
use serde_json::json;

use super::{create, wait_reported};

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

/// The handler is runc behind a script that records its calls.
pub(super) fn a_runtime_class_is_a_handler_of_the_node(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    let (runtime, called) = (node.dir().join("other-runc"), node.dir().join("called"));
    fs::write(&runtime, format!("#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n", called.display()))?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755))?;
    node.agent.kill();
    let table = format!("runtimeClasses: {{other: {{binary: {}}}}}", runtime.display());
    node.agent.reconfigure(|settings| settings.limpet.push(table))?;
    cluster::join(node, &cluster, &[])?;
    let node_name = node.name().to_owned();
    let name = |handler: &str| format!("{handler}-{node_name}");
    for handler in ["other", "runc", "absent"] {
        let class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": name(handler) }, "handler": handler });
        cluster.create(CLASSES, &class)?;
    }
    let of_class = |node: &TestNode, pod_name: &str, handler: &str| {
        let spec = json!({ "runtimeClassName": name(handler), "containers": [shell("main", IDLE)] });
        create(node, &cluster, &pod(pod_name, spec))
    };

    of_class(node, "plain", "runc")?;
    wait_reported(node, &cluster, "plain")?;
    ensure!(!called.exists(), "handler runc is not the node's own runtime");
    of_class(node, "web", "other")?;
    let first = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    let made = |id: &str| {
        let calls = fs::read_to_string(&called).unwrap_or_default();
        calls.lines().any(|call| call.contains(" create ") && call.contains(id))
    };
    ensure!(made(&first), "handler other has not made {first}");
    of_class(node, "lost", "absent")?;
    node.wait_event("no runtime for \"absent\" is configured")?;

    // The pod keeps its runtime when the class is gone. When another pod runs, the agent has heard of that.
    cluster.delete(&format!("{CLASSES}/{}", name("other")))?;
    let restarted = |node: &TestNode, before: &str, witness: &str| -> Result<String> {
        of_class(node, witness, "runc")?;
        wait_reported(node, &cluster, witness)?;
        let task = node.containerd.tasks()?.into_iter().find(|task| task.id == before);
        process::signal_pid(task.context("no task")?.pid, Signal::KILL);
        let after = wait::until(wait::SOON, "a new container", || {
            let id = container_id(&wait_reported(node, &cluster, "web").ok()?, "main").ok()?;
            (id != before).then_some(id)
        })?;
        ensure!(made(&after), "handler other has not made {after}");
        Ok(after)
    };
    let second = restarted(node, &first, "deleted")?;
    node.agent.kill();
    node.agent.start()?;
    restarted(node, &second, "absent-since").map(drop)
}
