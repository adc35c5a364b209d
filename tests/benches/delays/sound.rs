//! Situations with a link that is in order: what becomes true on the node or in the cluster, and after how long.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{MAPS, Scene, Took, after, processes, runs, until, wait_runs};

/// How long nothing has happened before a cause, so that the effects of a start are over, and retries have become rare.
const QUIET_TIME: Duration = Duration::from_secs(10);

/// The mirror pod of a static pod is deleted by hand.
pub(crate) fn deleted_mirror(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let pod = scene.pod("mirror");
    scene.apply(&pod, "1")?;
    let first = scene.wait_mirror(&pod)?;
    let path = scene.mirror(&pod);
    let cause = Instant::now();
    scene.cluster.delete(&path)?;
    let another = || scene.at(&path).is_some_and(|now| now["metadata"]["uid"] != first["metadata"]["uid"]);
    let took = after(cause, another)?;
    scene.end(&pod, "1")?;
    Ok(vec![took])
}

/// A static pod runs in a namespace that the cluster does not have yet.
pub(crate) fn missing_namespace(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let namespace = scene.name("lab");
    let pod = scene.pod_in(&namespace, "early");
    scene.apply(&pod, "1")?;
    wait_runs(&pod, "1")?;
    scene.pass(QUIET_TIME)?;
    let cause = Instant::now();
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    scene.cluster.create("/api/v1/namespaces", &object)?;
    let took = after(cause, || scene.at(&scene.mirror(&pod)).is_some())?;
    scene.end(&pod, "1")?;
    Ok(vec![took])
}

/// A label of a mirror pod is edited by hand.
pub(crate) fn edited_mirror(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let pod = scene.pod("edited-mirror");
    let mut manifest = scene.manifest(&pod, "1");
    manifest["metadata"]["labels"] = json!({ "app": "web" });
    scene.put(&pod, &manifest)?;
    scene.wait_mirror(&pod)?;
    let path = scene.mirror(&pod);
    let cause = Instant::now();
    scene.cluster.patch(&path, &json!({ "metadata": { "labels": { "app": "db" } } }))?;
    let took = after(cause, || scene.at(&path).is_some_and(|now| now["metadata"]["labels"]["app"] == "web"))?;
    scene.end(&pod, "1")?;
    Ok(vec![took])
}

/// The ConfigMap of a volume has another value. The file is checked where the process finds it.
pub(crate) fn changed_config_map(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let (pod, map) = (scene.pod("reader"), scene.name("changed"));
    scene.cluster.create(MAPS, &config_map(&map, "day"))?;
    let mount = json!([{ "name": "conf", "mountPath": "/conf" }]);
    let volume = json!([{ "name": "conf", "configMap": { "name": map } }]);
    let mut main = scene.manifest(&pod, "1")["spec"]["containers"][0].take();
    main["volumeMounts"] = mount;
    scene.create_with(&pod, "1", json!({ "spec": { "containers": [main], "volumes": volume } }))?;
    scene.wait_shown(&scene.path(&pod))?;
    let has = |value: &str| {
        let file = |pid| fs::read_to_string(format!("/proc/{pid}/root/conf/mode"));
        processes(&pod, "1").into_iter().any(|pid| file(pid).is_ok_and(|text| text == value))
    };
    until("the first value", || has("day"))?;
    scene.pass(QUIET_TIME)?;
    let cause = Instant::now();
    scene.cluster.patch(&format!("{MAPS}/{map}"), &json!({ "data": { "mode": "night" } }))?;
    let took = after(cause, || has("night"))?;
    scene.delete(&pod)?;
    Ok(vec![took])
}

/// A variable of a pod comes from a ConfigMap that is created late.
pub(crate) fn missing_config_map(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let (pod, map) = (scene.pod("waiting"), scene.name("missing"));
    let key = json!({ "configMapKeyRef": { "name": map, "key": "mode" } });
    let mut main = scene.manifest(&pod, "1")["spec"]["containers"][0].take();
    main["env"] = json!([{ "name": "MODE", "valueFrom": key }]);
    scene.create_with(&pod, "1", json!({ "spec": { "containers": [main] } }))?;
    let path = scene.path(&pod);
    let waits = |pod: Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object();
    until("a pod that waits", || scene.at(&path).is_some_and(waits))?;
    scene.pass(QUIET_TIME)?;
    let cause = Instant::now();
    scene.cluster.create(MAPS, &config_map(&map, "day"))?;
    let took = after(cause, || runs(&pod, "1"))?;
    scene.delete(&pod)?;
    Ok(vec![took])
}

/// The Node object is deleted by hand.
pub(crate) fn deleted_node(scene: &Scene<'_>) -> Result<Vec<Took>> {
    let path = scene.node();
    let uid = || scene.at(&path).map(|node| node["metadata"]["uid"].clone());
    let first = uid();
    let cause = Instant::now();
    scene.cluster.delete(&path)?;
    let took = after(cause, || uid().is_some_and(|now| Some(now) != first) && scene.is_ready())?;
    Ok(vec![took])
}

fn config_map(name: &str, mode: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "mode": mode } })
}
