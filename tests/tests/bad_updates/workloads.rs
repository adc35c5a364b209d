//! Workloads that fail beside a pod that works.

use anyhow::Result;
use limpet_tests::TestNode;
use limpet_tests::manifest::{IDLE, shell, with};
use serde_json::{Value, json};

use crate::stage::{End, Update, beside, try_all};

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
