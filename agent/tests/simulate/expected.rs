//! What kubelet would have run by the end, from a pod's manifest alone: a model that shares nothing with the agent's
//! plan.
//!
//! kubelet recreates a static pod for every edit except of resources that change in place. So the newest instance of
//! each container is of the version that is desired, whatever the container is for, whatever the restart policy, and
//! whether or not it had finished before the edit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use limpet_model::pod::PodRecord;
use limpet_model::pod::authored::{Authored, AuthoredContainer};
use serde_json::json;

use crate::manifests::CPUS;

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
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let (sidecars, inits): (Vec<&Container>, Vec<&Container>) =
        spec.init_containers.iter().flatten().partition(is_sidecar);
    let code = |container: &Container| newest.get(&container.name).and_then(|(_, code)| *code);
    // The rules of a container restart it, and all others, unless it succeeds.
    let restarts = |container: &Container| container.restart_policy_rules.is_some() && code(container) != Some(0);
    let stays = |container: &Container| {
        !restarts(container)
            && match container.restart_policy.as_deref().unwrap_or(policy) {
                "Never" => code(container).is_some(),
                "OnFailure" => code(container) == Some(0),
                _ => false,
            }
    };
    let failed = |init: &&Container| code(init).is_some_and(|code| code != 0);
    let failed_init = if policy == "Never" { inits.iter().position(failed) } else { None };
    // What follows an init container that failed may have run in an earlier sandbox, with another version.
    let tried = failed_init.map_or(inits.len(), |at| at + 1);
    let mains = spec.containers.iter().filter(|_| failed_init.is_none());
    let over = failed_init.is_some() || spec.containers.iter().all(stays);
    let authored = Authored::parse(&record.manifest);
    let mut violations = Vec::new();
    // A sidecar that is replaced while the last of the others ends is not started again.
    let replaced = sidecars.iter().copied().filter(|_| !over);
    for container in inits.iter().copied().take(tried).chain(replaced).chain(mains) {
        let Some((ran, _)) = newest.get(&container.name) else { continue };
        let wanted = authored.container(&container.name).map(AuthoredContainer::fingerprint);
        // It may have ended for good before it was resized, as under kubelet.
        let for_good = code(container).is_some() && (failed_init.is_some() || stays(container));
        let ended_before = for_good && differs_in_cpu(record, container, ran);
        if wanted.as_ref() != Some(ran) && !ended_before {
            violations.push(format!("{}/{} ran version {ran} last, not {wanted:?}", record.key, container.name));
        }
    }
    // Sidecars run exactly as long as a regular container runs, or is to run again.
    let runs = |sidecar: &&&Container| newest.get(&sidecar.name).is_some_and(|(_, code)| code.is_none());
    for sidecar in sidecars.iter().filter(|sidecar| runs(sidecar) == over) {
        violations.push(format!("sidecar {}/{} runs: {}, its pod is over: {over}", record.key, sidecar.name, over));
    }
    if failed_init.is_some() {
        return violations;
    }
    let all = inits.iter().chain(&sidecars).copied().chain(&spec.containers);
    for container in all.filter(|container| !newest.contains_key(&container.name)) {
        violations.push(format!("{}/{} has never run", record.key, container.name));
    }
    for container in spec.containers.iter().filter(|container| code(container).is_some() && !stays(container)) {
        violations.push(format!("{}/{} has ended and does not run, with policy {policy}", record.key, container.name));
    }
    violations
}

/// Whether `version` is the container's but for its limit of cpu.
fn differs_in_cpu(record: &PodRecord, container: &Container, version: &str) -> bool {
    let version_with = |cpu: &u32| {
        let mut edited = json!({ "name": container.name, "image": container.image });
        if *cpu > 0 {
            edited["resources"] = json!({ "limits": { "cpu": format!("{cpu}m") } });
        }
        let manifest = json!({ "spec": { "containers": [edited] } }).to_string();
        Authored::parse(manifest.as_bytes()).container(&container.name).map(AuthoredContainer::fingerprint)
    };
    let is_main = record.spec().containers.iter().any(|main| main.name == container.name);
    is_main && CPUS.iter().any(|cpu| version_with(cpu).as_deref() == Some(version))
}
