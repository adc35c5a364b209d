//! ConfigMaps and Secrets that pods refer to: waited for, followed, and left alone where they are immutable.

use anyhow::{Result, ensure};
use limpet_tests::cluster::{self, join};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use super::{create, object, wait_reported};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(super) fn a_pod_waits_for_what_it_refers_to_and_follows_its_edits(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let (map, secret) = (format!("settings-{}", node.name()), format!("keys-{}", node.name()));
    let env = json!([{ "name": "KEY", "valueFrom": { "secretKeyRef": { "name": secret, "key": "k" } } }]);
    let main = with(
        shell("main", &format!("echo key=$KEY; {IDLE}")),
        json!({ "env": env, "volumeMounts": [{ "name": "settings", "mountPath": "/settings" }] }),
    );
    let volumes = json!([{ "name": "settings", "configMap": { "name": map } }]);
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    node.wait_event(&format!("configmap \"{map}\" not found"))?;
    cluster.create(MAPS, &object(&map, json!({ "mode": "day" })))?;
    let keys = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret }, "stringData": { "k": "s3cret" } });
    cluster.create("/api/v1/namespaces/default/secrets", &keys)?;
    let shown = wait_reported(node, &cluster, "web")?;
    node.wait_logged("web", "main", "key=s3cret")?;
    ensure!(node.exec("web", "main", &["cat", "/settings/mode"])? == "day");
    cluster.patch(&format!("{MAPS}/{map}"), &json!({ "data": { "mode": "night" } }))?;
    wait::until_true(wait::SOON, "the new value in the volume", || {
        node.exec("web", "main", &["cat", "/settings/mode"]).is_ok_and(|mode| mode == "night")
    })?;
    let now = wait_reported(node, &cluster, "web")?;
    ensure!(container_id(&now, "main")? == container_id(&shown, "main")?, "restarted");
    Ok(())
}

/// As under kubelet, its watch ends with its first version. One of the same name that comes later is for later pods.
pub(super) fn an_immutable_config_map_is_read_once(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let [fixed, followed] = ["fixed", "followed"].map(|name| format!("{name}-{}", node.name()));
    let immutable = |mode: &str| with(object(&fixed, json!({ "mode": mode })), json!({ "immutable": true }));
    cluster.create(MAPS, &immutable("day"))?;
    cluster.create(MAPS, &object(&followed, json!({ "mode": "day" })))?;
    let mounts = ["fixed", "followed"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") }));
    let main = with(shell("main", IDLE), json!({ "volumeMounts": mounts }));
    let volume = |name: &str, map: &str| json!({ "name": name, "configMap": { "name": map } });
    let volumes = [volume("fixed", &fixed), volume("followed", &followed)];
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    wait_reported(node, &cluster, "web")?;
    let mode = |volume: &str| node.exec("web", "main", &["cat", &format!("/{volume}/mode")]);
    ensure!(mode("fixed")? == "day");

    cluster.delete(&format!("{MAPS}/{fixed}"))?;
    cluster.create(MAPS, &immutable("night"))?;
    // When the next edit has arrived, this one would have, too.
    cluster.patch(&format!("{MAPS}/{followed}"), &json!({ "data": { "mode": "night" } }))?;
    wait::until_true(wait::SOON, "the new value in the volume", || mode("followed").is_ok_and(|mode| mode == "night"))?;
    ensure!(mode("fixed")? == "day", "it was read again");
    Ok(())
}
