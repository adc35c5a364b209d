//! A namespace that is deleted under the pods of a node: what the cluster has there ends, what the node has keeps
//! running, and has its mirror pod again once the namespace is recreated.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, join, wait_at};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

pub(crate) fn a_namespace_is_deleted_and_recreated(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let namespace = format!("lab-{}", node.name());
    let make = || {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        cluster.create("/api/v1/namespaces", &object)
    };
    make()?;
    let path = format!("/api/v1/namespaces/{namespace}");
    wait_at(&cluster, &format!("{path}/serviceaccounts/default"), "there", |_| true)?;
    let spec = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [shell("main", IDLE)] });
    let of_namespace = |name: &str| with(pod(name, spec.clone()), json!({ "metadata": { "namespace": namespace } }));
    node.apply(&of_namespace("own"))?;
    let bound = json!({ "metadata": { "name": node.full_name("bound") }, "spec": { "nodeName": node.name() } });
    cluster.create(&format!("{path}/pods"), &with(of_namespace("bound"), bound))?;
    let running = |pod: &Value| pod["status"]["phase"] == "Running";
    let mirror = format!("{path}/pods/{}", node.full_name("own"));
    for path in [&mirror, &format!("{path}/pods/{}", node.full_name("bound"))] {
        wait_at(&cluster, path, "running", running)?;
    }
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].as_str().map(str::to_owned);
    let before = node.pod("own").and_then(|pod| id(&pod)).context("the pod has no container")?;

    cluster.delete(&path)?;
    wait::until_true(wait::SOON, "the end of the namespace", || {
        cluster.get(&path).is_ok_and(|object| object.is_none())
    })?;
    node.wait_gone("bound")?;
    make()?;
    wait_at(&cluster, &mirror, "running again", running)?;
    let after = node.pod("own").and_then(|pod| id(&pod));
    ensure!(after.as_ref() == Some(&before), "{before} is {after:?} now");
    cluster.delete(&path)
}
