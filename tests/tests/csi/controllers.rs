//! A cluster's own controllers: they bind, attach and detach; the test is the driver's external-attacher.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, Cluster, join, wait_at};
use limpet_tests::manifest::{shell, with};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use crate::driver::{Behaviour, Driver};
use crate::{ATTACHMENTS, PODS, claim, claimed, create, delete, describe, mounted, name, sha256, wait_reported};

/// The attach/detach controller of a whole cluster: it attaches for the node, and detaches once the node has unstaged.
pub(crate) fn a_clusters_own_controller_attaches_and_detaches(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let name = name(node);
    let driver = Driver::start(node, &name, Behaviour { stages: true, ..Behaviour::default() })?;
    driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": true }))?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    let attachment = format!("{ATTACHMENTS}/csi-{}", sha256(&format!("data{name}{}", node.name())));
    wait_at(&cluster, &attachment, "made by the controller", |_| true)?;
    // The test is the driver's external-attacher.
    cluster.patch(&format!("{attachment}/status"), &json!({ "status": { "attached": true } }))?;
    wait_reported(node, &cluster, "web")?;
    delete(node, &cluster, "web")?;
    wait::until_true(wait::SOON, "the end of the attachment", || {
        cluster.get(&attachment).is_ok_and(|object| object.is_none())
    })?;
    ensure!(driver.calls("unstage").len() == 1, "it was detached before it was unstaged: {:?}", driver.calls(""));
    Ok(())
}

/// A deleted pod of a StatefulSet is recreated with its volume: bound, attached and detached by a cluster's own controllers.
pub(crate) fn a_clusters_own_controllers_keep_the_volume_of_a_stateful_set(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::whole()?;
    join(node, &cluster, &[])?;
    let driver = Driver::start(node, &name(node), Behaviour { stages: true, ..Behaviour::default() })?;
    let data = driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": true }))?;
    provide(node, &cluster)?;
    let script = "echo $$ >> /data/runs; trap 'exit 0' TERM; sleep 100000 & wait";
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let pod = json!({
        "hostNetwork": true, "terminationGracePeriodSeconds": 5, "nodeSelector": { "kubernetes.io/hostname": node.name() },
        "containers": [with(shell("main", script), mounts)],
    });
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": node.name(), "resources": { "requests": { "storage": "1Mi" } } },
    });
    let labels = json!({ "app": node.name() });
    let spec = json!({
        "replicas": 1, "serviceName": node.name(), "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod }, "volumeClaimTemplates": [claim],
    });
    let set =
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": node.name() }, "spec": spec });
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    cluster.create(sets, &set)?;
    let pod = format!("{PODS}/{}-0", node.name());
    // The UID of the pod once it is ready, and is not `not`.
    let ready = |not: Option<&str>| {
        let shown =
            cluster.get(&pod).ok().flatten().filter(|pod| cluster::condition(pod, "Ready")["status"] == "True")?;
        shown["metadata"]["uid"].as_str().filter(|uid| Some(*uid) != not).map(str::to_owned)
    };
    let attached = |what: &str, not: Option<&str>| {
        wait::until(2 * wait::SOON, what, || attach(node, &cluster).ok().and_then(|()| ready(not)))
    };
    let before = attached("the pod", None)?;
    cluster.run_kubectl(&["delete", "pod", &format!("{}-0", node.name()), "--wait=false"])?;
    attached("its successor", Some(&before))?;
    let runs = fs::read_to_string(data.join("runs"))?;
    ensure!(runs.lines().count() == 2, "{runs:?}");
    ensure!(driver.calls("unpublish").len() == 1 && driver.calls("publish").len() == 2, "{:?}", driver.calls(""));
    cluster.run_kubectl(&["scale", &format!("statefulset/{}", node.name()), "--replicas=0"])?;
    wait::until_true(2 * wait::SOON, "the end of the attachment", || {
        attachments(node, &cluster).is_ok_and(|left| left.is_empty())
    })?;
    ensure!(driver.calls("unstage").len() == driver.calls("stage").len(), "{:?}", driver.calls(""));
    ensure!(mounted(node)?.is_empty(), "{:?}", mounted(node)?);
    cluster.run_kubectl(&["delete", &format!("statefulset/{}", node.name())]).map(drop)
}

/// Creates a class for this node only, and a volume of it.
fn provide(node: &TestNode, cluster: &Cluster) -> Result<()> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": node.name() },
        "provisioner": "kubernetes.io/no-provisioner",
    });
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", &class)?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Mi" }, "storageClassName": node.name(),
        "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": name(node), "volumeHandle": "data" },
    });
    let metadata = json!({ "name": format!("data-{}", node.name()) });
    let volume = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec });
    cluster.create("/api/v1/persistentvolumes", &volume)
}

/// The attachments of this node.
fn attachments(node: &TestNode, cluster: &Cluster) -> Result<Vec<Value>> {
    let list = cluster.get(ATTACHMENTS)?.unwrap_or_default();
    let all = list["items"].as_array().cloned().unwrap_or_default();
    Ok(all.into_iter().filter(|attachment| attachment["spec"]["nodeName"] == node.name()).collect())
}

/// Attaches what has to be attached, in place of the driver's external-attacher.
fn attach(node: &TestNode, cluster: &Cluster) -> Result<()> {
    for attachment in attachments(node, cluster)?.iter().filter(|attachment| attachment["status"]["attached"] != true) {
        let name = attachment["metadata"]["name"].as_str().context("no name")?;
        cluster.patch(&format!("{ATTACHMENTS}/{name}/status"), &json!({ "status": { "attached": true } }))?;
    }
    Ok(())
}
