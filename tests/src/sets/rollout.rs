//! The numbers of ready pods that a workload passes through, from every change of a pod. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::files::kind_and_name;
use super::view::{is_ending, is_ready, is_rolled_out};

/// What is known of a pod.
#[derive(Debug, Clone)]
struct Known {
    workload: String,
    ready: bool,
    ending: bool,
}

/// What a workload has passed through.
#[derive(Debug, Clone, Default)]
struct Passed {
    /// The numbers of ready pods, each other than the one before.
    ready: Vec<usize>,
    /// The pods in the order in which they became ready.
    order: Vec<String>,
}

/// All workloads of all sets.
#[derive(Debug, Default)]
pub struct Rollouts {
    /// By namespace and UID.
    pods: BTreeMap<(String, String), Known>,
    /// By namespace and workload.
    passed: BTreeMap<(String, String), Passed>,
}

impl Rollouts {
    /// Takes note of a pod that has changed, or is gone.
    pub fn change(&mut self, pod: &Value, is_gone: bool) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &pod["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let Some(workload) = workload(pod) else { return };
        let key = (namespace.clone(), text(&metadata["uid"]));
        let ready = !is_gone && is_ready(pod);
        let was_ready = self.pods.get(&key).is_some_and(|known| known.ready);
        if is_gone {
            self.pods.remove(&key);
        } else {
            let known = Known { workload: workload.clone(), ready, ending: is_ending(pod) };
            self.pods.insert(key, known);
        }
        let of_workload = self.pods.iter().filter(|((its, _), known)| *its == namespace && known.workload == workload);
        let count = of_workload.filter(|(_, known)| known.ready && !known.ending).count();
        let passed = self.passed.entry((namespace, workload)).or_default();
        if passed.ready.last() != Some(&count) {
            passed.ready.push(count);
        }
        if ready && !was_ready {
            passed.order.push(name);
        }
    }

    /// Forgets what was passed through, and keeps where the workloads are.
    pub fn begin(&mut self, namespace: &str) {
        for ((its, _), passed) in &mut self.passed {
            if its == namespace {
                passed.ready = passed.ready.last().copied().into_iter().collect();
                passed.order.clear();
            }
        }
    }

    /// The lines of a version of a set; `before` are the documents of the one before.
    pub fn lines(&self, namespace: &str, before: &[Value], now: &[Value]) -> Vec<String> {
        let of_document = |document: &&Value| is_rolled_out(document);
        now.iter().filter(of_document).filter_map(|document| self.line(namespace, before, document)).collect()
    }

    fn line(&self, namespace: &str, before: &[Value], document: &Value) -> Option<String> {
        let name = kind_and_name(document);
        let passed = self.passed.get(&(namespace.to_owned(), name.clone()))?;
        let before = before.iter().find(|other| kind_and_name(other) == name);
        let in_order = document["kind"] == "StatefulSet" && document["spec"]["podManagementPolicy"] != "Parallel";
        let order = passed.order.join(" ");
        let order = if in_order && !order.is_empty() { format!(", in the order {order}") } else { String::new() };
        let counts = || passed.ready.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let least = passed.ready.iter().min()?;
        match before {
            // What starts from nothing has one way to its number, but pods that are not ready for a while.
            None => in_order.then(|| format!("{name}: starts{order}")),
            Some(before) if before["spec"] == document["spec"] => None,
            Some(before) if has_one_way(before, document) => Some(format!("{name}: {} ready pods{order}", counts())),
            Some(_) => Some(format!("{name}: at least {least} ready pods")),
        }
    }
}

/// Whether the numbers of ready pods between two versions do not depend on how fast pods get ready: one pod at a time, and each
/// counts as available only a while after it was seen to be ready beside its predecessor.
fn has_one_way(before: &Value, now: &Value) -> bool {
    let is_deployment = now["kind"] == "Deployment";
    let (before, now) = (&before["spec"], &now["spec"]);
    let same = |key: &str| before[key] == now[key];
    let is_seen = now["minReadySeconds"].as_u64().is_some_and(|seconds| seconds > 0);
    let is_stepwise = is_seen && same("replicas") && now["strategy"].is_object();
    same("template") || !is_deployment || now["strategy"]["type"] == "Recreate" || is_stepwise
}

/// The workload that a pod belongs to: of a Deployment's pod not its ReplicaSet.
fn workload(pod: &Value) -> Option<String> {
    let metadata = &pod["metadata"];
    let owner = &metadata["ownerReferences"][0];
    let (kind, name) = (owner["kind"].as_str()?, owner["name"].as_str()?);
    let hash = metadata["labels"]["pod-template-hash"].as_str();
    Some(match hash.and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-')) {
        Some(deployment) => format!("Deployment/{deployment}"),
        None => format!("{kind}/{name}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, ready: &str, ending: bool) -> Value {
        let deleted = ending.then_some("2026-01-01T00:00:00Z");
        json!({
            "metadata": {
                "namespace": "shop", "name": uid, "uid": uid, "labels": { "pod-template-hash": "abc" },
                "ownerReferences": [{ "kind": "ReplicaSet", "name": "web-abc" }], "deletionTimestamp": deleted,
            },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        })
    }

    fn web(replicas: u32, image: &str) -> Value {
        let strategy = json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
        json!({ "kind": "Deployment", "metadata": { "name": "web" },
            "spec": { "replicas": replicas, "minReadySeconds": 1, "strategy": strategy, "template": image } })
    }

    #[test]
    fn a_pod_that_ends_is_not_ready() {
        let mut rollouts = Rollouts::default();
        rollouts.change(&pod("a", "True", false), false);
        rollouts.begin("shop");
        for (uid, ready, ending) in [("b", "False", false), ("b", "True", false), ("a", "True", true)] {
            rollouts.change(&pod(uid, ready, ending), false);
        }
        rollouts.change(&pod("a", "False", true), true);
        let lines = rollouts.lines("shop", &[web(1, "1")], &[web(1, "2")]);
        assert_eq!(lines, ["Deployment/web: 1 2 1 ready pods"]);
        let lines = rollouts.lines("shop", &[web(2, "1")], &[web(1, "2")]);
        assert_eq!(lines, ["Deployment/web: at least 1 ready pods"]);
        assert!(rollouts.lines("shop", &[web(1, "1")], &[web(1, "1")]).is_empty());
    }
}
