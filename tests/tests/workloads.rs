//! The controllers of a whole cluster on limpet's node: Deployments, StatefulSets with volumes, DaemonSets, Jobs and
//! CronJobs; and what `kubectl cordon`, `drain` and `taint` do to it; and the certificates that its controllers sign
//! for nodes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use certificates::{
    a_node_bootstraps_again_after_its_certificate_has_expired,
    a_node_bootstraps_again_whose_certificate_expired_while_it_was_off,
    certificates_are_signed_and_renewed_by_the_controllers,
};
use limpet_tests::cluster::{self, Cluster, join, joining, node_path, wait_at};
use limpet_tests::manifest::{IDLE, shell, with};
use limpet_tests::{TestNode, case, image, suite, wait};
use namespace::a_namespace_is_deleted_and_recreated;
use outage::{
    a_pod_that_ends_while_the_node_is_away_has_ended_once, pods_are_ready_again_after_the_node_was_taken_for_lost,
};
use serde_json::{Value, json};

#[path = "workloads/certificates.rs"]
mod certificates;
#[path = "workloads/namespace.rs"]
mod namespace;
#[path = "workloads/outage.rs"]
mod outage;

/// A CronJob's first run is due within a minute.
const A_WHILE: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "/api/v1/namespaces/default";
const APPS: &str = "/apis/apps/v1/namespaces/default";
const BATCH: &str = "/apis/batch/v1/namespaces/default";

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(a_stateful_set_keeps_its_volumes_and_never_runs_twice)),
        joining(case!(a_daemon_set_is_rolled_out_and_back)),
        joining(case!(a_deployment_is_scaled_rolled_out_and_back)),
        joining(case!(jobs_and_cron_jobs_complete)),
        joining(case!(a_node_is_cordoned_drained_and_tainted)),
        joining(case!(a_namespace_is_deleted_and_recreated)),
        joining(case!(pods_are_ready_again_after_the_node_was_taken_for_lost)),
        joining(case!(a_pod_that_ends_while_the_node_is_away_has_ended_once)),
        joining(case!(certificates_are_signed_and_renewed_by_the_controllers)),
        joining(case!(a_node_bootstraps_again_after_its_certificate_has_expired)),
        joining(case!(a_node_bootstraps_again_whose_certificate_expired_while_it_was_off)),
    ]);
    cluster::end();
    code
}

/// A pod's template for this node alone.
fn template(node: &TestNode, spec: Value) -> Value {
    let of_node = json!({
        "hostNetwork": true, "terminationGracePeriodSeconds": 5, "nodeSelector": { "kubernetes.io/hostname": node.name() },
    });
    json!({ "metadata": { "labels": { "app": node.name() } }, "spec": with(of_node, spec) })
}

fn workload(node: &TestNode, api: &str, kind: &str, spec: Value) -> Value {
    json!({ "apiVersion": api, "kind": kind, "metadata": { "name": node.name() }, "spec": spec })
}

/// Creates a volume of the node for each replica, and the class by which claims find them.
fn local_volumes(node: &TestNode, cluster: &Cluster, count: usize) -> Result<()> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": node.name() },
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", &class)?;
    for index in 0..count {
        let directory = node.dir().join(format!("volume-{index}"));
        std::fs::create_dir(&directory)?;
        let here = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node.name()] });
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": format!("{}-{index}", node.name()) },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Mi" }, "storageClassName": node.name(),
                "persistentVolumeReclaimPolicy": "Retain", "local": { "path": directory },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } },
            },
        });
        cluster.create("/api/v1/persistentvolumes", &volume)?;
    }
    Ok(())
}

fn wait_ready(cluster: &Cluster, path: &str, field: &str, count: u32) -> Result<Value> {
    wait_at(cluster, path, &format!("{count} {field}"), |shown| {
        shown["status"][field] == count && shown["status"]["observedGeneration"] == shown["metadata"]["generation"]
    })
}

/// The lines that the replicas have written, of all volumes.
fn written(node: &TestNode, count: usize) -> Vec<Vec<String>> {
    let read = |index: usize| {
        let file = node.dir().join(format!("volume-{index}/runs"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    (0..count).map(read).collect()
}

fn a_stateful_set_keeps_its_volumes_and_never_runs_twice(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    local_volumes(node, &cluster, 2)?;
    // A pod that finds the lock of another in its volume reports it.
    let script = format!(
        "mkdir /data/lock && echo \"$NAME begins\" >> /data/runs || echo \"$NAME beside another\" >> /data/runs
        trap 'sleep 1; rmdir /data/lock; exit 0' TERM; {}",
        "sleep 100000 & wait"
    );
    let name = json!([{ "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]);
    let main = json!({ "env": name, "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": node.name(), "resources": { "requests": { "storage": "1Mi" } } },
    });
    let spec = json!({
        "replicas": 2, "serviceName": node.name(), "selector": { "matchLabels": { "app": node.name() } },
        "template": template(node, json!({ "containers": [with(shell("main", &script), main)] })),
        "volumeClaimTemplates": [claim],
    });
    cluster.create(&format!("{APPS}/statefulsets"), &workload(node, "apps/v1", "StatefulSet", spec))?;
    let (path, first) = (format!("{APPS}/statefulsets/{}", node.name()), format!("{}-0", node.name()));
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    let uid = |cluster: &Cluster| {
        let pod = cluster.get(&format!("{NAMESPACE}/pods/{first}")).ok().flatten();
        pod.and_then(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned))
    };
    let before = uid(&cluster).context("no pod")?;
    // The successor has the same name and volume, and starts only once its predecessor has ended.
    cluster.run_kubectl(&["delete", "pod", &first, "--wait=false"])?;
    wait::until_true(A_WHILE, "the successor", || uid(&cluster).is_some_and(|now| now != before))?;
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    let target = format!("statefulset/{}", node.name());
    cluster.run_kubectl(&["scale", &target, "--replicas=0"])?;
    wait::until_true(A_WHILE, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))?;
    cluster.run_kubectl(&["scale", &target, "--replicas=2"])?;
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    let runs = written(node, 2);
    let lines_of =
        |replica: &str| runs.iter().find(|lines| lines.first().is_some_and(|line| line.starts_with(replica)));
    let second = format!("{}-1", node.name());
    let begun = |replica: &str, times: usize| vec![format!("{replica} begins"); times];
    ensure!(lines_of(&first) == Some(&begun(&first, 3)) && lines_of(&second) == Some(&begun(&second, 2)), "{runs:?}");
    cluster.run_kubectl(&["delete", &target])?;
    wait::until_true(A_WHILE, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))
}

fn a_daemon_set_is_rolled_out_and_back(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let spec = json!({
        "selector": { "matchLabels": { "app": node.name() } },
        "template": template(node, json!({ "containers": [shell("main", IDLE)] })),
    });
    cluster.create(&format!("{APPS}/daemonsets"), &workload(node, "apps/v1", "DaemonSet", spec))?;
    let path = format!("{APPS}/daemonsets/{}", node.name());
    wait_ready(&cluster, &path, "numberReady", 1)?;
    roll_out_and_back(node, &cluster, &format!("daemonset/{}", node.name()), 1)
}

fn a_deployment_is_scaled_rolled_out_and_back(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let spec = json!({
        "replicas": 1, "selector": { "matchLabels": { "app": node.name() } },
        "template": template(node, json!({ "containers": [shell("main", IDLE)] })),
    });
    cluster.create(&format!("{APPS}/deployments"), &workload(node, "apps/v1", "Deployment", spec))?;
    let (path, target) = (format!("{APPS}/deployments/{}", node.name()), format!("deployment/{}", node.name()));
    let kubectl = |args: &[&str]| cluster.run_kubectl(args).map(drop);
    kubectl(&["wait", "--for=condition=Available", &target, "--timeout=120s"])?;
    kubectl(&["scale", &target, "--replicas=3"])?;
    wait_ready(&cluster, &path, "availableReplicas", 3)?;
    roll_out_and_back(node, &cluster, &target, 3)
}

/// Gives the workload of `count` pods another image, reverts that, and deletes it.
fn roll_out_and_back(node: &TestNode, cluster: &Cluster, target: &str, count: usize) -> Result<()> {
    let runs = |image: &str| {
        wait::until_true(A_WHILE, &format!("{count} pods, of {image}"), || {
            let of_image = |pod: &Value| pod["spec"]["containers"][0]["image"] == *image;
            node.pods().is_ok_and(|pods| pods.len() == count && pods.iter().all(of_image))
        })
    };
    let kubectl = |args: &[&str]| cluster.run_kubectl(args).map(drop);
    runs(image::V1)?;
    kubectl(&["set", "image", target, &format!("main={}", image::V2)])?;
    kubectl(&["rollout", "status", target, "--timeout=120s"])?;
    runs(image::V2)?;
    kubectl(&["rollout", "undo", target])?;
    kubectl(&["rollout", "status", target, "--timeout=120s"])?;
    runs(image::V1)?;
    kubectl(&["delete", target])?;
    wait::until_true(A_WHILE, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))
}

fn jobs_and_cron_jobs_complete(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let once = |script: &str| {
        let spec = json!({ "restartPolicy": "Never", "containers": [shell("main", script)] });
        template(node, spec)
    };
    let spec = json!({ "completions": 3, "parallelism": 2, "template": once("echo done") });
    cluster.create(&format!("{BATCH}/jobs"), &workload(node, "batch/v1", "Job", spec))?;
    let job = format!("job/{}", node.name());
    cluster.run_kubectl(&["wait", "--for=condition=complete", &job, "--timeout=120s"])?;
    let log = cluster.run_kubectl(&["get", &job, "-o", "jsonpath={.status.succeeded}"])?;
    ensure!(log.trim() == "3", "{log}");
    let spec = json!({
        "schedule": "* * * * *",
        "jobTemplate": { "spec": { "template": once("exit 0") } },
    });
    cluster.create(&format!("{BATCH}/cronjobs"), &workload(node, "batch/v1", "CronJob", spec))?;
    wait_at(&cluster, &format!("{BATCH}/cronjobs/{}", node.name()), "its first run", |shown| {
        shown["status"]["lastSuccessfulTime"].is_string()
    })?;
    cluster.run_kubectl(&["delete", &format!("cronjob/{}", node.name()), &job])?;
    wait::until_true(A_WHILE, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))
}

fn a_node_is_cordoned_drained_and_tainted(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let spec = json!({
        "replicas": 2, "selector": { "matchLabels": { "app": node.name() } },
        "template": template(node, json!({ "containers": [shell("main", IDLE)] })),
    });
    cluster.create(&format!("{APPS}/deployments"), &workload(node, "apps/v1", "Deployment", spec))?;
    let path = format!("{APPS}/deployments/{}", node.name());
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    let name = node.name().to_owned();
    let nothing_runs =
        |node: &TestNode| wait::until_true(A_WHILE, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()));
    // A cordoned node is only closed to new pods; its own run on.
    cluster.run_kubectl(&["cordon", &name])?;
    let cordoned = cluster.get(&node_path(node))?.context("no node")?;
    ensure!(cordoned["spec"]["unschedulable"] == true, "{}", cordoned["spec"]);
    ensure!(node.pods()?.len() == 2, "the pods of a cordoned node run on");
    cluster.run_kubectl(&["drain", &name, "--timeout=120s"])?;
    nothing_runs(node)?;
    let shown = cluster.run_kubectl(&["get", "node", &name])?;
    ensure!(shown.contains("Ready,SchedulingDisabled"), "{shown}");
    cluster.run_kubectl(&["uncordon", &name])?;
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    // With NoExecute the controller of taints ends the running pods, whose successors are not scheduled here.
    cluster.run_kubectl(&["taint", "node", &name, "limpet.test/away=:NoExecute"])?;
    nothing_runs(node)?;
    cluster.run_kubectl(&["taint", "node", &name, "limpet.test/away-"])?;
    wait_ready(&cluster, &path, "readyReplicas", 2)?;
    let described = cluster.run_kubectl(&["describe", "node", &name])?;
    ensure!(described.contains("Non-terminated Pods:") && described.contains(&name), "{described}");
    let events = cluster.run_kubectl(&["get", "events", "--field-selector", &format!("involvedObject.name={name}")])?;
    ensure!(events.contains("NodeNotSchedulable") && events.contains("NodeSchedulable"), "{events}");
    cluster.run_kubectl(&["delete", &format!("deployment/{name}")])?;
    nothing_runs(node)
}
