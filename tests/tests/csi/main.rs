//! CSI drivers: volumes of a driver for pods of a real apiserver, from its registration to the last unmount. The cases
//! do what controllers and an external-attacher would do; with `LIMPET_TEST_LONG=1` a case has a cluster's own
//! attach/detach controller.

mod controllers;
mod driver;
mod features;
#[path = "../devices/serve.rs"]
mod serve;

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use controllers::{
    a_clusters_own_controller_attaches_and_detaches, a_clusters_own_controllers_keep_the_volume_of_a_stateful_set,
};
use driver::{Behaviour, Driver};
use features::{
    a_block_volume_is_a_device_of_the_container, a_driver_gets_tokens_and_publishes_again,
    a_volume_is_expanded_while_its_pod_runs, a_volume_is_measured_by_its_driver, a_volume_of_the_pods_own_goes_with_it,
};
use limpet_tests::cluster::{self, Cluster, join, joining, wait_at, wait_node};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

fn main() -> ExitCode {
    let mut cases = vec![
        joining(case!(a_driver_is_reported_to_the_cluster)),
        joining(case!(an_attached_volume_is_staged_published_and_given_back)),
        joining(case!(a_volume_outlives_a_restart_without_an_apiserver)),
        joining(case!(a_driver_that_is_away_is_waited_for)),
        joining(case!(a_volume_that_stays_staged_is_unstaged_later)),
        joining(case!(a_driver_gets_tokens_and_publishes_again)),
        joining(case!(a_block_volume_is_a_device_of_the_container)),
        joining(case!(a_volume_is_expanded_while_its_pod_runs)),
        joining(case!(a_volume_is_measured_by_its_driver)),
        joining(case!(a_driver_that_hangs_delays_its_own_pod_alone)),
        joining(case!(a_volume_of_the_pods_own_goes_with_it)),
    ];
    if suite::is_long() {
        cases.push(joining(case!(a_clusters_own_controller_attaches_and_detaches)));
        cases.push(joining(case!(a_clusters_own_controllers_keep_the_volume_of_a_stateful_set)));
    }
    let code = suite::run(cases);
    cluster::end();
    code
}

/// The name of a driver that only this node has.
fn name(node: &TestNode) -> String {
    format!("{}.csi.test", node.name())
}

/// Creates the CSIDriver object, and what every pod needs.
fn describe(node: &TestNode, cluster: &Cluster, spec: &Value) -> Result<()> {
    cluster.add_account()?;
    let metadata = json!({ "name": name(node) });
    let document =
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata, "spec": spec });
    cluster.create(DRIVERS, &document)
}

/// Creates a claim that is bound to a volume of the driver, as a cluster's controllers leave it; `change` is merged
/// into the volume's spec.
fn claim(node: &TestNode, cluster: &Cluster, handle: &str, change: Value) -> Result<String> {
    let name = format!("{handle}-{}", node.name());
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } }, "storageClassName": "",
        "volumeName": name,
    });
    let metadata = json!({ "name": name });
    let document = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec });
    let made = cluster.ask(CLAIMS, &document)?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Mi" }, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
            "uid": made["metadata"]["uid"] },
        "csi": { "driver": self::name(node), "volumeHandle": handle },
    });
    let document =
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": with(spec, change) });
    cluster.create("/api/v1/persistentvolumes", &document)?;
    cluster.patch(&format!("{CLAIMS}/{name}/status"), &json!({ "status": { "phase": "Bound" } }))?;
    Ok(name)
}

/// Creates a pod with these volumes, each mounted under its name, bound as by a scheduler.
fn create(node: &TestNode, cluster: &Cluster, name: &str, volumes: &[(&str, Value)], change: Value) -> Result<()> {
    let mounts: Vec<Value> =
        volumes.iter().map(|(name, _)| json!({ "name": name, "mountPath": format!("/{name}") })).collect();
    let volumes: Vec<Value> =
        volumes.iter().map(|(name, source)| with(json!({ "name": name }), source.clone())).collect();
    let main = with(shell("main", IDLE), json!({ "volumeMounts": mounts }));
    let spec = json!({
        "containers": [main], "volumes": volumes, "nodeName": node.name(), "automountServiceAccountToken": false,
    });
    let named = json!({ "metadata": { "name": node.full_name(name) } });
    cluster.create(PODS, &with(pod(name, with(spec, change)), named))
}

fn claimed(claim: &str) -> Value {
    json!({ "persistentVolumeClaim": { "claimName": claim } })
}

fn path(node: &TestNode, pod: &str) -> String {
    format!("{PODS}/{}", node.full_name(pod))
}

fn wait_reported(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<Value> {
    cluster.wait_reported(node, &path(node, pod), pod)
}

fn delete(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.delete(&path(node, pod))?;
    wait_deleted(node, cluster, pod)
}

fn wait_deleted(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("the end of {pod}"), || {
        cluster.get(&path(node, pod)).is_ok_and(|shown| shown.is_none())
    })
}

/// The mount points of drivers on the node.
fn mounted(node: &TestNode) -> Result<Vec<String>> {
    let dir = node.dir().to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let of_drivers = |point: &&str| point.starts_with(&dir) && point.contains("kubernetes.io");
    Ok(points.filter(of_drivers).filter(|point| point.contains("csi")).map(str::to_owned).collect())
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The directory in which a volume is staged.
fn staged(node: &TestNode, handle: &str) -> PathBuf {
    let staged = node.agent.settings().plugins().join("plugins/kubernetes.io/csi");
    staged.join(name(node)).join(sha256(handle))
}

/// Restarts the agent.
fn restart(node: &mut TestNode) -> Result<()> {
    node.agent.kill();
    node.agent.start()
}

fn a_driver_is_reported_to_the_cluster(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let (name, csi_node) = (name(node), format!("/apis/storage.k8s.io/v1/csinodes/{}", node.name()));
    let driver = Driver::start(node, &name, Behaviour::default())?;
    let entry = |shown: &Value| shown["spec"]["drivers"].as_array().and_then(|all| all.first().cloned());
    let shown = wait_at(&cluster, &csi_node, "the driver", |shown| entry(shown).is_some())?;
    let topology = format!("topology.{name}/node");
    let wanted = json!({ "name": name, "nodeID": format!("{}-id", node.name()), "topologyKeys": [topology],
        "allocatable": { "count": 5 } });
    ensure!(entry(&shown) == Some(wanted), "{shown}");
    let node_object =
        wait_node(node, &cluster, "named", |shown| shown["metadata"]["annotations"][NODE_IDS].is_string())?;
    ensure!(shown["metadata"]["ownerReferences"][0]["uid"] == node_object["metadata"]["uid"], "{shown}");
    ensure!(node_object["metadata"]["labels"][&topology] == node.name(), "{node_object}");
    wait::until_true(wait::SOON, "the notification", || driver.calls("registered true ").len() == 1)?;
    // A restart of the agent removes nothing from the object; the end of the socket does.
    let version = shown["metadata"]["resourceVersion"].clone();
    restart(node)?;
    wait::until_true(wait::SOON, "the next registration", || driver.calls("registered true ").len() == 2)?;
    let shown = cluster.get(&csi_node)?.context("no CSINode")?;
    ensure!(shown["metadata"]["resourceVersion"] == version, "it was changed: {shown}");
    drop(driver);
    wait_at(&cluster, &csi_node, "no driver", |shown| entry(shown).is_none())?;
    wait_node(node, &cluster, "not named", |shown| shown["metadata"]["annotations"][NODE_IDS].is_null())?;
    Ok(())
}

fn an_attached_volume_is_staged_published_and_given_back(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let name = name(node);
    let driver = Driver::start(node, &name, Behaviour { stages: true, ..Behaviour::default() })?;
    let data = driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "File" }))?;
    for (secret, value) in [("stage", "hunter2"), ("publish", "hunter3")] {
        let metadata = json!({ "name": format!("{secret}-{}", node.name()) });
        let values = json!({ "key": value });
        cluster.create(
            SECRETS,
            &json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values }),
        )?;
    }
    let reference = |secret: &str| json!({ "name": format!("{secret}-{}", node.name()), "namespace": "default" });
    let change = json!({
        "mountOptions": ["noatime"],
        "csi": { "fsType": "ext4", "volumeAttributes": { "kind": "fast" }, "nodeStageSecretRef": reference("stage"),
            "nodePublishSecretRef": reference("publish") },
    });
    let claim = claim(node, &cluster, "data", change)?;
    fs::write(data.join("old"), "of another group\n")?;
    chown(data.join("old"), None, Some(7))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({ "securityContext": { "fsGroup": 2000 } }))?;
    node.wait_event("is not attached to this node yet")?;
    let unique = format!("kubernetes.io/csi/{name}^data");
    wait_node(node, &cluster, "the volume in use", |shown| shown["status"]["volumesInUse"] == json!([unique]))?;
    ensure!(driver.calls("stage").is_empty(), "staged before it is attached: {:?}", driver.calls(""));
    // The test does what the attach/detach controller and the driver's external-attacher do.
    let attachment = format!("csi-{}", sha256(&format!("data{name}{}", node.name())));
    let source = json!({ "attacher": name, "nodeName": node.name(), "source": { "persistentVolumeName": claim } });
    cluster.create(
        ATTACHMENTS,
        &json!({ "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": attachment },
            "spec": source }),
    )?;
    let status = json!({ "attached": true, "attachmentMetadata": { "device": "sda" } });
    cluster.patch(&format!("{ATTACHMENTS}/{attachment}/status"), &json!({ "status": status }))?;
    let attached = json!({ "volumesAttached": [{ "name": unique, "devicePath": "" }] });
    cluster.patch(&format!("{}/status", cluster::node_path(node)), &json!({ "status": attached }))?;
    let web = wait_reported(node, &cluster, "web")?;

    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    let pods = node.agent.settings().root().join("pods");
    let target = pods.join(uid).join("volumes/kubernetes.io~csi").join(&claim);
    let mode = "SINGLE_NODE_WRITER fs=ext4 flags=noatime group=";
    let at = staged(node, "data").join("globalmount");
    let wanted =
        format!("stage data {mode} context=kind=fast secrets=key=hunter2 attached=device=sda at={}", at.display());
    ensure!(driver.calls("stage") == [wanted], "{:?}", driver.calls(""));
    let info = "csi.storage.k8s.io";
    let wanted = format!(
        "publish data {mode} readonly=false context={info}/ephemeral=false,{info}/pod.name={},{info}/pod.namespace=default,\
         {info}/pod.uid={uid},{info}/serviceAccount.name=default,kind=fast secrets=key=hunter3 at={}",
        node.full_name("web"),
        target.join("mount").display()
    );
    ensure!(driver.calls("publish") == [wanted], "{:?}", driver.calls(""));
    let written: Value = serde_json::from_str(&fs::read_to_string(target.join("vol_data.json"))?)?;
    ensure!(written["volumeHandle"] == "data" && written["attachmentID"] == attachment.as_str(), "{written}");
    let log = node.agent.log();
    ensure!(!log.contains("hunter2") && !log.contains("hunter3"), "a Secret is in the log");
    // The group owns existing files, and new ones.
    node.exec("web", "main", &["/bin/sh", "-c", "echo first > /data/file"])?;
    ensure!(node.exec("web", "main", &["stat", "-c", "%g", "/data/file", "/data/old"])? == "2000\n2000\n");

    // A second pod needs no second staging, and a restart of the agent no call at all.
    let reader = json!({ "persistentVolumeClaim": { "claimName": claim, "readOnly": true } });
    create(node, &cluster, "reader", &[("data", reader)], json!({}))?;
    wait_reported(node, &cluster, "reader")?;
    ensure!(node.exec("reader", "main", &["cat", "/data/file"])? == "first\n");
    ensure!(
        node.exec("reader", "main", &["/bin/sh", "-c", "echo 1 > /data/file"]).is_err(),
        "written to a read-only volume"
    );
    restart(node)?;
    wait::until_true(wait::SOON, "the next registration", || driver.calls("registered true ").len() == 2)?;
    wait_reported(node, &cluster, "web")?;
    ensure!(driver.calls("stage").len() == 1 && driver.calls("publish").len() == 2, "{:?}", driver.calls(""));
    wait_node(node, &cluster, "the volume in use", |shown| shown["status"]["volumesInUse"] == json!([unique]))?;

    // The end of the last user unstages the volume, and then a controller may detach it.
    delete(node, &cluster, "web")?;
    ensure!(driver.calls("unpublish").len() == 1 && driver.calls("unstage").is_empty(), "{:?}", driver.calls(""));
    // The volume's root already has the group, so with that policy nothing below it is checked.
    chown(data.join("old"), None, Some(7))?;
    let context = json!({ "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch" });
    create(node, &cluster, "next", &[("data", claimed(&claim))], json!({ "securityContext": context }))?;
    wait_reported(node, &cluster, "next")?;
    ensure!(
        node.exec("next", "main", &["cat", "/data/file"])? == "first\n",
        "the volume was lost over a pod's replacement"
    );
    ensure!(node.exec("next", "main", &["stat", "-c", "%g", "/data/old"])? == "7\n", "the volume was walked");
    delete(node, &cluster, "next")?;
    delete(node, &cluster, "reader")?;
    ensure!(driver.calls("unstage") == ["unstage data"], "{:?}", driver.calls(""));
    wait_node(node, &cluster, "no volume in use", |shown| {
        shown["status"]["volumesInUse"].as_array().is_none_or(Vec::is_empty)
    })?;
    ensure!(mounted(node)?.is_empty() && !staged(node, "data").exists(), "{:?}", mounted(node)?);
    ensure!(fs::read_to_string(data.join("file"))? == "first\n");
    Ok(())
}

/// Staged and published volumes are mounted again by what the agent last knew, as after a reboot.
fn a_volume_outlives_a_restart_without_an_apiserver(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    join(node, &cluster, &[])?;
    let name = name(node);
    let driver = Driver::start(node, &name, Behaviour { stages: true, mount_group: true, ..Behaviour::default() })?;
    driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({ "securityContext": { "fsGroup": 2000 } }))?;
    let before = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    ensure!(driver.calls("publish")[0].contains(" group=2000 "), "{:?}", driver.calls("publish"));
    node.exec("web", "main", &["/bin/sh", "-c", "echo kept > /data/file"])?;
    cluster.stop()?;
    node.agent.kill();
    for point in mounted(node)? {
        process::checked(Command::new("umount").arg(point))?;
    }
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == before);
    process::signal_pid(task.context("no task")?.pid, Signal::KILL);
    node.agent.start()?;
    node.wait_pod("web", "running again", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    ensure!(node.exec("web", "main", &["cat", "/data/file"])? == "kept\n");
    ensure!(driver.calls("stage").len() == 2 && driver.calls("publish").len() == 2, "{:?}", driver.calls(""));
    cluster.start()?;
    wait_reported(node, &cluster, "web")?;
    delete(node, &cluster, "web")?;
    ensure!(mounted(node)?.is_empty() && driver.calls("unstage").len() == 1, "{:?}", driver.calls(""));
    Ok(())
}

fn a_driver_that_is_away_is_waited_for(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let name = name(node);
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    node.wait_event(&format!("CSI driver {name} is not registered on this node: no socket of it in"))?;
    let driver = Driver::start(node, &name, Behaviour { stages: true, ..Behaviour::default() })?;
    // Its volume does not exist yet, either.
    node.wait_event("NodeStageVolume: rpc error: code = NotFound desc = no volume data")?;
    driver.volume("data")?;
    wait_reported(node, &cluster, "web")?;
    drop(driver);
    wait::until_true(wait::SOON, "the driver's end", || node.agent.log().contains("CSI driver deregistered"))?;
    cluster.delete(&path(node, "web"))?;
    node.wait_event("UnmountVolume.TearDown failed")?;
    ensure!(!mounted(node)?.is_empty(), "the volume was taken away without its driver");
    // The next agent knows of it, too: the pod stays as long as its volume exists, even if nothing else of it does.
    let mark = node.mark()?;
    restart(node)?;
    node.wait_log_since(&mark, &["unmounting a volume failed; retried later"])?;
    node.wait_log_since(&mark, &["connected to the apiserver"])?;
    ensure!(cluster.get(&path(node, "web"))?.is_some(), "the pod went before its volume");
    let driver = Driver::start(node, &name, Behaviour { stages: true, ..Behaviour::default() })?;
    wait_deleted(node, &cluster, "web")?;
    ensure!(driver.calls("unpublish").len() == 1 && driver.calls("unstage").len() == 1, "{:?}", driver.calls(""));
    ensure!(mounted(node)?.is_empty(), "{:?}", mounted(node)?);
    Ok(())
}

/// A driver that did not unstage a volume is called again, although the pod is gone by then.
fn a_volume_that_stays_staged_is_unstaged_later(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let behaviour = Behaviour { stages: true, unstage_fails: 1, ..Behaviour::default() };
    let driver = Driver::start(node, &name(node), behaviour)?;
    driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    wait_reported(node, &cluster, "web")?;
    delete(node, &cluster, "web")?;
    wait::until_true(wait::SOON, "the second call", || driver.calls("unstage").len() == 2)?;
    wait::until_true(wait::SOON, "the end of what is written down", || !staged(node, "data").exists())?;
    ensure!(driver.calls("unpublish").len() == 1 && mounted(node)?.is_empty(), "{:?}", driver.calls(""));
    Ok(())
}

fn a_driver_that_hangs_delays_its_own_pod_alone(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let behaviour = Behaviour { hangs_at: Some("stuck".to_owned()), ..Behaviour::default() };
    let driver = Driver::start(node, &name(node), behaviour)?;
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    for handle in ["stuck", "data"] {
        driver.volume(handle)?;
        let claim = claim(node, &cluster, handle, json!({}))?;
        create(node, &cluster, handle, &[("data", claimed(&claim))], json!({}))?;
        if handle == "stuck" {
            wait::until_true(wait::SOON, "the call", || driver.calls("publish stuck").len() == 1)?;
        }
    }
    wait_reported(node, &cluster, "data")?;
    delete(node, &cluster, "data")?;
    cluster.delete(&path(node, "stuck"))?;
    // The driver's connection ends, and the call with it.
    drop(driver);
    let driver = Driver::start(node, &name(node), Behaviour::default())?;
    wait_deleted(node, &cluster, "stuck")?;
    ensure!(driver.calls("unpublish stuck").len() == 1, "{:?}", driver.calls(""));
    Ok(())
}
