//! What drivers may do besides mounting: tokens, block devices, expansion, figures, volumes of a single pod.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use limpet_tests::claim::Port;
use limpet_tests::cluster::{self, join, wait_at};
use limpet_tests::manifest::{IDLE, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, process, wait};
use serde_json::{Value, json};

use crate::driver::{Behaviour, Driver};
use crate::{
    CLAIMS, SECRETS, claim, claimed, create, delete, describe, mounted, name, restart, sha256, staged, wait_reported,
};

/// The driver gets tokens of the pod's service account, by `tokenRequests`, and publishes volumes again while their pod
/// runs, by `requiresRepublish`.
pub(crate) fn a_driver_gets_tokens_and_publishes_again(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let behaviour = Behaviour { publish_fails: 3, ..Behaviour::default() };
    let driver = Driver::start(node, &name(node), behaviour)?;
    driver.volume("data")?;
    let requests = json!([{ "audience": "vault", "expirationSeconds": 600 }, { "audience": "" }]);
    let spec = json!({ "attachRequired": false, "requiresRepublish": true, "tokenRequests": requests });
    describe(node, &cluster, &spec)?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    let web = wait_reported(node, &cluster, "web")?;
    let before = container_id(&web, "main")?;
    let published = || driver.calls("publish");
    let given = tokens(&published()[0], "context=", " secrets=")?;
    let token = given["vault"]["token"].as_str().context("no token")?.to_owned();
    let claims = token.split('.').nth(1).context("not a token")?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
    ensure!(claims["aud"] == json!(["vault"]), "{claims}");
    ensure!(claims["kubernetes.io"]["pod"]["uid"] == web["metadata"]["uid"], "{claims}");
    ensure!(given["vault"]["expirationTimestamp"].is_string() && given[""]["token"].is_string(), "{given}");

    // The next agent publishes again, with the tokens that are still valid.
    restart(node)?;
    wait::until_true(wait::SOON, "the second call", || published().len() == 2)?;
    ensure!(tokens(&published()[1], "context=", " secrets=")? == given, "{:?}", published());
    // It publishes again after a minute, as kubelet does. That call fails, which the pod does not notice, and is
    // repeated.
    wait::until_true(3 * wait::SOON, "the third call", || published().len() == 3)?;
    node.wait_event("the vault is sealed")?;
    wait::until_true(wait::SOON, "the fourth call", || published().len() == 4)?;
    node.exec("web", "main", &["/bin/sh", "-c", "echo 1 > /data/file"])?;
    ensure!(container_id(&wait_reported(node, &cluster, "web")?, "main")? == before, "it was restarted");
    ensure!(!node.agent.log().contains(&token), "a token is in the log");
    delete(node, &cluster, "web")?;
    ensure!(mounted(node)?.is_empty(), "{:?}", mounted(node)?);
    Ok(())
}

/// The tokens in a call, which follow `begin` and end at `end`.
fn tokens(call: &str, begin: &str, end: &str) -> Result<Value> {
    let begin = format!("{begin}csi.storage.k8s.io/serviceAccount.tokens=");
    let text = call.split_once(&begin).and_then(|(_, rest)| rest.split_once(end));
    Ok(serde_json::from_str(text.with_context(|| format!("no tokens: {call}"))?.0)?)
}

/// With `volumeMode: Block` the device is on kubelet's paths.
pub(crate) fn a_block_volume_is_a_device_of_the_container(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let driver = Driver::start(node, &name(node), Behaviour { stages: true, ..Behaviour::default() })?;
    let disk = driver.disk("disk")?;
    describe(node, &cluster, &json!({ "attachRequired": false, "podInfoOnMount": true }))?;
    let claim = claim(node, &cluster, "disk", json!({ "volumeMode": "Block" }))?;
    let devices = json!([{ "name": "disk", "devicePath": "/dev/data" }]);
    let containers = json!([with(shell("main", IDLE), json!({ "volumeDevices": devices }))]);
    let volume = [("disk", claimed(&claim))];
    create(node, &cluster, "web", &volume, json!({ "containers": containers.clone() }))?;
    let web = wait_reported(node, &cluster, "web")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    let devices = node.agent.settings().plugins().join("plugins/kubernetes.io/csi/volumeDevices");
    let target = devices.join("publish").join(&claim).join(uid);
    let calls = driver.calls("stage");
    let at = format!(" at={}", devices.join("staging").join(&claim).display());
    ensure!(calls.len() == 1 && calls[0].contains("Block") && calls[0].ends_with(&at), "{calls:?}");
    let calls = driver.calls("publish");
    ensure!(calls.len() == 1 && calls[0].ends_with(&format!(" at={}", target.display())), "{calls:?}");
    let pod = node.agent.settings().root().join("pods").join(uid);
    let link = pod.join("volumeDevices/kubernetes.io~csi").join(&claim);
    ensure!(fs::read_link(&link)? == target, "{}", link.display());
    node.exec("web", "main", &["/bin/sh", "-c", "echo first | dd of=/dev/data conv=notrunc,fsync"])?;
    restart(node)?;
    wait::until_true(wait::SOON, "the next registration", || driver.calls("registered true ").len() == 2)?;
    delete(node, &cluster, "web")?;
    ensure!(driver.calls("unpublish").len() == 1 && driver.calls("unstage").len() == 1, "{:?}", driver.calls(""));
    let left = ["publish", "staging"].map(|directory| devices.join(directory).join(&claim).exists());
    ensure!(left == [false, false] && !devices.join(&claim).exists() && mounted(node)?.is_empty(), "{left:?}");
    ensure!(fs::read(&disk)?.starts_with(b"first\n"), "what the pod has written is not there");
    // The next pod reads it.
    create(node, &cluster, "next", &volume, json!({ "containers": containers }))?;
    wait_reported(node, &cluster, "next")?;
    ensure!(node.exec("next", "main", &["head", "-c", "6", "/dev/data"])? == "first\n");
    delete(node, &cluster, "next")
}

/// A volume that the cluster's resizer has expanded is expanded on the node, within kubelet's period, while its pod runs.
pub(crate) fn a_volume_is_expanded_while_its_pod_runs(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let behaviour = Behaviour { stages: true, expands: true, ..Behaviour::default() };
    let driver = Driver::start(node, &name(node), behaviour)?;
    driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    let secret = json!({ "name": format!("expand-{}", node.name()), "namespace": "default" });
    let values = json!({ "key": "hunter4" });
    let document =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret["name"] }, "stringData": values });
    cluster.create(SECRETS, &document)?;
    let claim = claim(node, &cluster, "data", json!({ "csi": { "nodeExpandSecretRef": secret } }))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    let web = wait_reported(node, &cluster, "web")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    // The test does what a resizer does.
    let (claim_at, volume_at) = (format!("{CLAIMS}/{claim}"), format!("/api/v1/persistentvolumes/{claim}"));
    cluster.patch(&volume_at, &json!({ "spec": { "capacity": { "storage": "2Mi" } } }))?;
    let conditions = json!([{ "type": "FileSystemResizePending", "status": "True" }]);
    let status = json!({
        "capacity": { "storage": "1Mi" }, "conditions": conditions, "allocatedResources": { "storage": "2Mi" },
        "allocatedResourceStatuses": { "storage": "NodeResizePending" },
    });
    cluster.patch(&format!("{claim_at}/status"), &json!({ "status": status }))?;
    wait::until_true(3 * wait::SOON, "the call", || driver.calls("expand").len() == 1)?;
    let target = node.agent.settings().root().join("pods").join(uid).join("volumes/kubernetes.io~csi").join(&claim);
    let wanted = format!(
        "expand data SINGLE_NODE_WRITER fs= flags= group= bytes=2097152 secrets=key=hunter4 at={} staged={}",
        target.join("mount").display(),
        staged(node, "data").join("globalmount").display()
    );
    ensure!(driver.calls("expand") == [wanted], "{:?}", driver.calls("expand"));
    wait_at(&cluster, &claim_at, "expanded", |shown| {
        let status = &shown["status"];
        let no_conditions = status["conditions"].as_array().is_none_or(Vec::is_empty);
        status["capacity"]["storage"] == "2Mi" && no_conditions && status["allocatedResourceStatuses"].is_null()
    })?;
    node.wait_event("MountVolume.NodeExpandVolume succeeded for volume")?;
    delete(node, &cluster, "web")
}

/// What a driver reports about a volume is in the summary and in the metrics, by its claim.
pub(crate) fn a_volume_is_measured_by_its_driver(node: &mut TestNode) -> Result<()> {
    let (cluster, port) = (cluster::shared()?, Port::claim()?);
    let keys = ["address: 127.0.0.1".to_owned(), format!("readOnlyPort: {}", port.number)];
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys))?;
    join(node, &cluster, &[])?;
    let driver = Driver::start(node, &name(node), Behaviour { measures: true, ..Behaviour::default() })?;
    driver.volume("data")?;
    describe(node, &cluster, &json!({ "attachRequired": false }))?;
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "web", &[("data", claimed(&claim))], json!({}))?;
    wait_reported(node, &cluster, "web")?;
    let url = format!("http://127.0.0.1:{}/stats/summary", port.number);
    let summary = process::checked(Command::new("curl").args(["-sS", "--fail", "--max-time", "60", &url]))?;
    let summary: Value = serde_json::from_str(&summary)?;
    let volume = &summary["pods"][0]["volume"][0];
    let reference = json!({ "name": claim, "namespace": "default" });
    ensure!(volume["name"] == "data" && volume["pvcRef"] == reference, "{summary}");
    let figures = ["capacityBytes", "availableBytes", "usedBytes", "inodes", "inodesFree", "inodesUsed"];
    let figures = figures.map(|figure| volume[figure].as_u64().unwrap_or_default());
    ensure!(figures == [1_048_576, 1_044_480, 4_096, 100, 97, 3], "{volume}");
    let page = node.agent.metrics()?;
    let line =
        format!("kubelet_volume_stats_used_bytes{{namespace=\"default\",persistentvolumeclaim=\"{claim}\"}} 4096");
    ensure!(page.lines().any(|written| written == line), "{page}");
    ensure!(driver.calls("stats").iter().all(|call| call.ends_with(&format!("kubernetes.io~csi/{claim}/mount"))));
    delete(node, &cluster, "web")?;
    ensure!(!node.agent.metrics()?.contains("persistentvolumeclaim="), "a volume that is gone has figures");
    Ok(())
}

pub(crate) fn a_volume_of_the_pods_own_goes_with_it(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let name = name(node);
    let driver = Driver::start(node, &name, Behaviour { stages: true, ..Behaviour::default() })?;
    let spec = json!({
        "attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"],
        "tokenRequests": [{ "audience": "vault" }], "serviceAccountTokenInSecrets": true,
    });
    describe(node, &cluster, &spec)?;
    let inline = json!({ "csi": { "driver": name, "volumeAttributes": { "size": "1Gi" } } });
    create(node, &cluster, "web", &[("scratch", inline)], json!({}))?;
    let web = wait_reported(node, &cluster, "web")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    let handle = format!("csi-{}", sha256(&format!("{uid}scratch")));
    let calls = driver.calls("publish");
    ensure!(calls.len() == 1 && calls[0].starts_with(&format!("publish {handle} ")), "{calls:?}");
    ensure!(calls[0].contains("ephemeral=true") && calls[0].contains("size=1Gi"), "{calls:?}");
    let given = tokens(&calls[0], "secrets=", " at=")?;
    ensure!(
        given["vault"]["token"].is_string() && !calls[0].contains("context=csi.storage.k8s.io/serviceAccount.tokens")
    );
    ensure!(driver.calls("stage").is_empty(), "{:?}", driver.calls(""));
    node.exec("web", "main", &["/bin/sh", "-c", "echo 1 > /scratch/file"])?;
    // The driver has no volumes that outlive a pod.
    let claim = claim(node, &cluster, "data", json!({}))?;
    create(node, &cluster, "other", &[("data", claimed(&claim))], json!({}))?;
    node.wait_event("volume mode \"Persistent\" not supported by driver")?;
    delete(node, &cluster, "other")?;
    delete(node, &cluster, "web")?;
    ensure!(driver.calls("unpublish") == [format!("unpublish {handle}")], "{:?}", driver.calls(""));
    ensure!(mounted(node)?.is_empty(), "{:?}", mounted(node)?);
    Ok(())
}
