//! What kubelet would have run by the end, from a pod's manifest alone: a model that shares nothing with the agent's plan.
//!
//! kubelet makes a static pod anew for every edit. So the newest instance of each container is of the version that is
//! desired, whatever the container is for, whatever the restart policy, and whether or not it had finished before the edit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use limpet_model::pod::PodRecord;
use limpet_model::pod::authored::{Authored, AuthoredContainer};

/// The newest instance of each container: its version, and its exit code.
pub(crate) type Newest = BTreeMap<String, (String, Option<i32>)>;

/// How what ran differs from what kubelet would have run. `failed`: the node has ended the pod.
pub(crate) fn contradictions(record: &PodRecord, newest: &Newest, failed: bool) -> Vec<String> {
    let spec = record.spec();
    // A deadline that passes between an edit and the start of its version leaves the version before.
    if failed || spec.active_deadline_seconds.is_some() {
        return Vec::new();
    }
    let policy = spec.restart_policy.as_deref().unwrap_or("Always");
    let authored = Authored::of(&record.manifest);
    let mut found = Vec::new();
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let Some((ran, _)) = newest.get(&container.name) else { continue };
        let wanted = authored.container(&container.name).map(AuthoredContainer::fingerprint);
        if wanted.as_ref() != Some(ran) {
            found.push(format!("{}/{} ran version {ran} last, not {wanted:?}", record.key, container.name));
        }
    }
    let inits = spec.init_containers.iter().flatten();
    let code = |container: &Container| newest.get(&container.name).and_then(|(_, code)| *code);
    if policy == "Never" && inits.clone().any(|init| code(init).is_some_and(|code| code != 0)) {
        return found;
    }
    for container in inits.chain(&spec.containers).filter(|container| !newest.contains_key(&container.name)) {
        found.push(format!("{}/{} has never run", record.key, container.name));
    }
    let crashed = spec.containers.iter().filter(|container| code(container).is_some_and(|code| code != 0));
    for container in crashed.filter(|_| policy != "Never") {
        found.push(format!("{}/{} has failed and does not run, with policy {policy}", record.key, container.name));
    }
    found
}
