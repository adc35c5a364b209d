//! A node that the cluster's controllers take for lost: they set all its pods to not ready, and leave it to the node to say
//! otherwise once its link is back. What ended meanwhile has ended once.

use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::cluster::{self, condition, wait_node};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::wire::Wire;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

/// A node is taken for lost after 50 s without a lease.
const TAKEN_FOR_LOST: Duration = Duration::from_secs(150);

pub(crate) fn pods_are_ready_again_after_the_node_was_taken_for_lost(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    let wire = Wire::to(cluster.port())?;
    cluster.admit(node, &[])?;
    cluster.node_credentials_at(&wire.address(), node.name())?;
    node.agent.start()?;
    wait_node(node, &cluster, "ready", |found| condition(found, "Ready")["status"] == "True")?;
    let spec = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [shell("main", IDLE)] });
    node.apply(&pod("own", spec.clone()))?;
    let pods = "/api/v1/namespaces/default/pods";
    let bind = |name: &str, spec: Value| {
        let bound = json!({ "metadata": { "name": node.full_name(name) }, "spec": { "nodeName": node.name() } });
        cluster.create(pods, &with(pod(name, spec), bound))
    };
    bind("bound", spec)?;
    bind("once", once(node)?)?;
    // Other cases need the cluster meanwhile.
    drop(cluster);
    let paths = ["own", "bound"].map(|name| format!("{pods}/{}", node.full_name(name)));
    let path_of_once = format!("{pods}/{}", node.full_name("once"));
    let found = |path: &String| cluster::whole().ok()?.get(path).ok()?;
    let all = |what: &str, patience, accept: &dyn Fn(&Value) -> bool| {
        wait::until(patience, what, || {
            let found: Option<Vec<Value>> = paths.iter().map(found).collect();
            found.filter(|found| found.iter().all(accept))
        })
    };
    let ready = |status: &'static str| move |pod: &Value| condition(pod, "Ready")["status"] == status;
    let before = all("two pods that are ready", wait::SOON, &ready("True"))?;
    node.wait_running("once")?;
    wire.cut();
    // A pod ends meanwhile, and the next agent starts without a server.
    std::fs::write(node.dir().join("once/end"), "")?;
    node.wait_pod("once", "over", |pod| pod["status"]["phase"] == "Succeeded")?;
    node.agent.kill();
    node.agent.start()?;
    all("two pods of a node that is lost", TAKEN_FOR_LOST, &ready("False"))?;
    wire.join();
    let after = all("two pods that are ready again", wait::SOON, &ready("True"))?;
    let statuses =
        |pods: &[Value]| -> Vec<Value> { pods.iter().map(|pod| pod["status"]["containerStatuses"].clone()).collect() };
    ensure!(statuses(&before) == statuses(&after), "{before:?}\n{after:?}");
    let over = wait::until(wait::SOON, "a pod that is over", || {
        found(&path_of_once).filter(|pod| pod["status"]["phase"] == "Succeeded")
    })?;
    let main = &over["status"]["containerStatuses"][0];
    ensure!(main["restartCount"] == 0 && main["state"]["terminated"]["exitCode"] == 0, "{main}");
    ensure!(std::fs::read_to_string(node.dir().join("once/runs"))? == "run\n", "it ran again");
    for path in [&paths[1], &path_of_once] {
        cluster::whole()?.delete(path)?;
        wait::until_true(wait::SOON, "the end of the pod", || found(path).is_none())?;
    }
    Ok(())
}

/// A pod that runs once, until it is told to end.
fn once(node: &TestNode) -> Result<Value> {
    let directory = node.dir().join("once");
    std::fs::create_dir(&directory)?;
    let script = "echo run >> /once/runs; until test -e /once/end; do sleep 0.1; done";
    let mount = json!({ "volumeMounts": [{ "name": "once", "mountPath": "/once" }] });
    Ok(json!({
        "hostNetwork": true, "restartPolicy": "Never", "containers": [with(shell("main", script), mount)],
        "volumes": [{ "name": "once", "hostPath": { "path": directory } }],
    }))
}
