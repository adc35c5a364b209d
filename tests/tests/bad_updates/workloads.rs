//! Workloads that fail beside a pod that works, and what an update takes from a workload that works.

use std::fs;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, shell, with};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use crate::stage::{End, FILE, LIMIT, Update, all, begin_with, beside, has_ended, try_all, web, works};

fn template(container: Value, restart_policy: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": "new" } },
        "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "restartPolicy": restart_policy, "containers": [container] },
    })
}

fn undone(kind: &'static str, group: &str, spec: Value, why: &'static str) -> Update {
    let workload =
        json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": { "name": "new" }, "spec": spec });
    Update { name: kind, text: beside(vec![workload]), end: End::Undone(why) }
}

pub(crate) fn workloads_that_fail(node: &mut TestNode) -> Result<()> {
    let selector = json!({ "matchLabels": { "app": "new" } });
    let probe = json!({ "readinessProbe": { "exec": { "command": ["/bin/false"] }, "periodSeconds": 1 } });
    let unready = template(with(shell("main", IDLE), probe), "Always");
    let crashing = template(shell("main", "exit 6"), "Always");
    let failing = template(shell("main", "exit 7"), "Never");
    try_all(
        node,
        vec![
            undone("Deployment", "apps", json!({ "selector": selector, "template": unready }), "pod default/new-"),
            undone(
                "StatefulSet",
                "apps",
                json!({ "serviceName": "new", "selector": selector, "template": unready }),
                "new-0",
            ),
            undone(
                "DaemonSet",
                "apps",
                json!({ "selector": selector, "template": crashing }),
                "container main ended with 6",
            ),
            undone("Job", "batch", json!({ "backoffLimit": 0, "template": failing }), "Job default/new has failed"),
        ],
    )
}

/// A StatefulSet whose pod is ready if `command` succeeds, with a claim that ends with it.
fn set(command: &str) -> Value {
    let mount = json!({
        "readinessProbe": { "exec": { "command": [command] }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "files", "mountPath": "/data" }],
    });
    let claim = json!({
        "metadata": { "name": "files" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    });
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "selector": { "matchLabels": { "app": "new" } }, "template": template(with(shell("main", IDLE), mount), "Always"),
            "volumeClaimTemplates": [claim],
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Delete" },
        },
    })
}

pub(crate) fn claims_and_sets_come_back(node: &mut TestNode) -> Result<()> {
    let good = beside(vec![set("/bin/true")]);
    begin_with(node, &good)?;
    let mark = node.agent.settings().root().join("persistent-volumes/file/default/files-db-0/data/mark");
    fs::write(&mark, "kept")?;
    let serves = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        pod["metadata"]["name"] == "db-0" && conditions.iter().any(is_ready)
    };
    let wait_db = || wait::until_true(LIMIT, "the set's pod", || node.pods().is_ok_and(|pods| pods.iter().any(serves)));
    wait_db()?;
    // The one without the set ends its pod, which lets go of the claim; the other breaks its pod.
    let unready = json!({ "readinessProbe": { "exec": { "command": ["/bin/false"] }, "periodSeconds": 1 } });
    let mut without = web();
    without["spec"]["containers"][0] = with(without["spec"]["containers"][0].clone(), unready);
    without["metadata"]["labels"]["version"] = json!("bad");
    for (text, why) in [(all(&[without]), "is not ready"), (beside(vec![set("/bin/false")]), "db-0")] {
        node.drop_text(FILE, &text)?;
        has_ended(node, End::Undone(why))?;
        works(node)?;
        wait_db()?;
        ensure!(fs::read_to_string(&mark)? == "kept");
        begin_with(node, &good)?;
    }
    Ok(())
}
