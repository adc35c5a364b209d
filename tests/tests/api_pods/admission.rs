//! What the node does not admit, or not yet: pods beyond its resources, of other nodes, and those that do not tolerate
//! it.

use anyhow::{Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::cluster::{self, join, wait_at};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container_id;
use serde_json::{Value, json};

use super::{create, path, wait_reported};

pub(super) fn a_pod_that_does_not_fit_fails_and_a_critical_one_makes_room(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &["--system-reserved=cpu=250m", "--node-labels=site=lab", "--provider-id=edge://7"])?;
    let of_node = format!("/api/v1/nodes/{}", node.name());
    let cores = std::thread::available_parallelism()?.get();
    let shown = wait_at(&cluster, &of_node, "its allocatable resources", |shown| {
        shown["status"]["allocatable"]["cpu"] == format!("{}m", cores * 1_000 - 250)
    })?;
    ensure!(shown["status"]["capacity"]["cpu"] == json!(cores.to_string()), "{shown}");
    ensure!(shown["spec"]["providerID"] == "edge://7", "{shown}");
    ensure!(shown["status"]["features"]["supplementalGroupsPolicy"] == true, "{shown}");
    let asks = |name: &str, milli: usize| {
        let resources = json!({ "resources": { "requests": { "cpu": format!("{milli}m") } } });
        pod(name, json!({ "containers": [with(shell("main", IDLE), resources)] }))
    };
    let refused = |pod: &str, reason: &str| {
        wait_at(&cluster, &path(node, pod), reason, |shown| {
            shown["status"]["phase"] == "Failed" && shown["status"]["reason"] == reason
        })
    };
    create(node, &cluster, &asks("runs", cores * 1_000 - 500))?;
    wait_reported(node, &cluster, "runs")?;
    create(node, &cluster, &asks("second", 500))?;
    let shown = refused("second", "OutOfcpu")?;
    let message = shown["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("Pod was rejected: Node didn't have enough resource: cpu"), "{shown}");
    let selects = |zone: &str| json!({ "spec": { "nodeSelector": { "site": zone } } });
    create(node, &cluster, &with(simple("elsewhere", IDLE), selects("roof")))?;
    refused("elsewhere", "NodeAffinity")?;
    create(node, &cluster, &with(simple("here", IDLE), selects("lab")))?;
    node.wait_running("here")?;

    node.apply(&asks("critical", 500))?;
    node.wait_running("critical")?;
    let shown = refused("runs", "Preempting")?;
    ensure!(shown["status"]["message"] == "Preempted in order to admit critical pod", "{shown}");
    node.wait_event("Preempted in order to admit critical pod")?;

    create(node, &cluster, &asks("fills", cores * 1_000 - 750))?;
    node.wait_running("fills")?;
    let critical = json!({ "spec": { "priorityClassName": "system-node-critical" } });
    create(node, &cluster, &with(asks("of-the-cluster", 500), critical))?;
    node.wait_running("of-the-cluster")?;
    refused("fills", "Preempting").map(drop)
}

pub(super) fn a_resize_that_does_not_fit_is_deferred_until_there_is_room(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let cores = std::thread::available_parallelism()?.get();
    let asks = |milli: usize| json!({ "resources": { "requests": { "cpu": format!("{milli}m") } } });
    let of_cpu =
        |name: &str, milli: usize| pod(name, json!({ "containers": [with(shell("main", IDLE), asks(milli))] }));
    create(node, &cluster, &of_cpu("large", cores * 1_000 - 500))?;
    create(node, &cluster, &of_cpu("web", 400))?;
    wait_reported(node, &cluster, "large")?;
    let id = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    let edit = json!({ "spec": { "containers": [with(json!({ "name": "main" }), asks(900))] } });
    cluster.patch_items(&format!("{}/resize", path(node, "web")), &edit)?;
    let pending = |shown: &Value| cluster::condition(shown, "PodResizePending").clone();
    let shown = wait_at(&cluster, &path(node, "web"), "deferred", |shown| pending(shown)["reason"] == "Deferred")?;
    let message = pending(&shown)["message"].as_str().unwrap_or_default().to_owned();
    ensure!(message.starts_with("Node didn't have enough resource: cpu, requested: 900, used: "), "{shown}");
    ensure!(pending(&shown)["observedGeneration"] == shown["metadata"]["generation"], "{shown}");
    let main = &shown["status"]["containerStatuses"][0];
    ensure!(main["allocatedResources"]["cpu"] == "400m", "{shown}");
    cluster.delete(&path(node, "large"))?;
    let resized = wait_at(&cluster, &path(node, "web"), "resized", |shown| {
        let main = &shown["status"]["containerStatuses"][0];
        main["resources"]["requests"]["cpu"] == "900m" && !shown["status"].to_string().contains("PodResize")
    })?;
    ensure!(resized["status"]["containerStatuses"][0]["allocatedResources"]["cpu"] == "900m", "{resized}");
    ensure!(container_id(&resized, "main")? == id, "restarted");
    Ok(())
}

/// As with kubelet, on a node whose policy of processors is `static` this also holds for cpu that is not exclusive.
pub(super) fn a_resize_of_a_guaranteed_pods_cpu_is_infeasible(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let limits = |cpu: &str, memory: &str| json!({ "resources": { "limits": { "cpu": cpu, "memory": memory } } });
    let web = pod("web", json!({ "containers": [with(shell("main", IDLE), limits("300m", "32Mi"))] }));
    create(node, &cluster, &web)?;
    let id = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    let resize = |cpu: &str, memory: &str| {
        let amounts = json!({ "cpu": cpu, "memory": memory });
        let main = json!({ "name": "main", "resources": { "requests": amounts, "limits": amounts } });
        let edit = json!({ "spec": { "containers": [main] } });
        cluster.patch_items(&format!("{}/resize", path(node, "web")), &edit)
    };
    let mark = node.mark()?;
    resize("400m", "64Mi")?;
    let pending = |shown: &Value| cluster::condition(shown, "PodResizePending").clone();
    let shown = wait_at(&cluster, &path(node, "web"), "infeasible", |shown| pending(shown)["reason"] == "Infeasible")?;
    let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    ensure!(pending(&shown)["message"] == message, "{shown}");
    let allocated = &shown["status"]["containerStatuses"][0]["allocatedResources"];
    ensure!(allocated["cpu"] == "300m" && allocated["memory"] == "32Mi", "{shown}");
    node.wait_event_since(&mark, &["web", "ResizeInfeasible"])?;
    // Only memory changes.
    resize("300m", "64Mi")?;
    let resized = wait_at(&cluster, &path(node, "web"), "resized", |shown| {
        let main = &shown["status"]["containerStatuses"][0];
        main["resources"]["limits"]["memory"] == "64Mi" && !shown["status"].to_string().contains("PodResize")
    })?;
    ensure!(container_id(&resized, "main")? == id, "restarted");
    Ok(())
}

pub(super) fn a_pod_that_does_not_tolerate_the_node_is_refused(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &["--register-with-taints=repair=yes:NoExecute"])?;
    // When it has reported them, it has seen its Node.
    wait_at(&cluster, &format!("/api/v1/nodes/{}", node.name()), "its conditions", |shown| {
        shown["status"]["conditions"].as_array().is_some_and(|conditions| !conditions.is_empty())
    })?;
    let tolerations = json!([{ "key": "repair", "operator": "Exists" }]);
    create(node, &cluster, &with(simple("tolerant", IDLE), json!({ "spec": { "tolerations": tolerations } })))?;
    node.wait_running("tolerant")?;
    create(node, &cluster, &simple("intolerant", IDLE))?;
    wait_at(&cluster, &path(node, "intolerant"), "refused", |shown| {
        shown["status"]["phase"] == "Failed" && shown["status"]["reason"] == "TaintToleration"
    })?;
    // The node's own pods are not subject to the cluster's taints.
    node.apply(&simple("own", IDLE))?;
    node.wait_running("own").map(drop)
}

pub(super) fn a_pod_beyond_the_nodes_number_fails_and_a_critical_one_gets_a_place(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &["--max-pods=2"])?;
    let failed = |pod: &str, reason: &str| {
        wait_at(&cluster, &path(node, pod), reason, |shown| {
            shown["status"]["phase"] == "Failed" && shown["status"]["reason"] == reason
        })
    };
    let critical = json!({ "spec": { "priorityClassName": "system-node-critical" } });
    create(node, &cluster, &simple("first", IDLE))?;
    node.wait_running("first")?;
    create(node, &cluster, &simple("second", IDLE))?;
    node.wait_running("second")?;
    create(node, &cluster, &simple("beyond", IDLE))?;
    let shown = failed("beyond", "OutOfpods")?;
    let message = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2";
    ensure!(shown["status"]["message"] == message, "{shown}");

    create(node, &cluster, &with(simple("of-the-cluster", IDLE), critical.clone()))?;
    node.wait_running("of-the-cluster")?;
    node.apply(&simple("of-the-node", IDLE))?;
    node.wait_running("of-the-node")?;
    for ended in ["first", "second"] {
        let shown = failed(ended, "Preempting")?;
        ensure!(shown["status"]["message"] == "Preempted in order to admit critical pod", "{shown}");
    }
    // The running pods are as important, so none ends for it.
    create(node, &cluster, &with(simple("another", IDLE), critical))?;
    failed("another", "OutOfpods").map(drop)
}
