//! How readily the kernel kills the containers of a pod when memory runs out (kubelet's `qos` policy).

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::pod::PodRecord;
use crate::pod::qos::{MEMORY, QosClass, all_containers, request};
use crate::pod::quantity::Amount;
use crate::pod::totals::is_sidecar;

/// `oom_score_adj` of guaranteed and of node-critical pods.
const GUARANTEED_OOM_SCORE: i64 = -997;

/// `oom_score_adj` of pods that request nothing.
const BEST_EFFORT_OOM_SCORE: i64 = 1_000;

/// The lowest priority of critical pods (that of `system-cluster-critical`).
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The container's `oom_score_adj` on a node with so many bytes of memory (kubelet's `GetContainerOOMScoreAdjust`).
pub fn oom_score_adj(pod: &PodRecord, container: &Container, memory_capacity: u64) -> i32 {
    let spec = pod.spec();
    let score = match pod.qos_class {
        _ if is_node_critical(pod) => GUARANTEED_OOM_SCORE,
        QosClass::Guaranteed => GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => burstable_oom_score(spec, container, memory_capacity),
    };
    i32::try_from(score).unwrap_or(BEST_EFFORT_OOM_SCORE as i32) // every branch is within ±1,000
}

/// The more of the node's memory a burstable container requests, the safer it is, always between the other classes.
fn burstable_oom_score(spec: &PodSpec, container: &Container, memory_capacity: u64) -> i64 {
    let memory = |container: &Container| {
        container.resources.as_ref().map(|resources| request(resources, MEMORY)).unwrap_or_default()
    };
    let mut requested = memory(container);
    let in_init = spec.init_containers.iter().flatten().any(|init| init.name == container.name);
    if in_init && is_sidecar(container) {
        // A sidecar must not be killed before the containers it serves.
        requested = requested.max(spec.containers.iter().map(memory).min().unwrap_or_default());
    }
    let pod_level = spec.resources.as_ref().map(|resources| request(resources, MEMORY)).unwrap_or_default();
    if !pod_level.is_zero() {
        let rest = (pod_level - all_containers(spec).map(memory).sum()).max(Amount::ZERO);
        let share = rest.units() / i64::try_from(all_containers(spec).count().max(1)).unwrap_or(i64::MAX);
        return burstable_formula(requested.units().saturating_add(share), memory_capacity);
    }
    burstable_formula(requested.units(), memory_capacity)
}

fn burstable_formula(requested: i64, memory_capacity: u64) -> i64 {
    let share = 1_000 * i128::from(requested) / i128::from(memory_capacity.max(1));
    let score = i64::try_from(1_000 - share).unwrap_or(i64::MIN);
    score.clamp(1_000 + GUARANTEED_OOM_SCORE, BEST_EFFORT_OOM_SCORE - 1)
}

/// Whether it is `system-node-critical` and entitled to it, as a local pod or one whose class the apiserver admitted.
fn is_node_critical(pod: &PodRecord) -> bool {
    let spec = pod.spec();
    spec.priority_class_name.as_deref() == Some("system-node-critical")
        && (!pod.source.traits().is_stored || spec.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::record_of_spec as record;
    use crate::source::SourceKind;

    fn container(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    const CAPACITY: u64 = 4_000_000_000;

    #[test]
    fn oom_scores_follow_class_and_request() {
        let limits = json!({"cpu": "1", "memory": "1G"});
        let with_memory = |memory: &str| json!({"containers": [container("c", json!({"memory": memory}), json!({}))]});
        let cases = [
            ("best effort", json!({"containers": [{"name": "c"}]}), 1_000),
            ("guaranteed", json!({"containers": [container("c", json!({}), limits)]}), -997),
            ("no memory", json!({"containers": [container("c", json!({"cpu": "1"}), json!({}))]}), 999),
            ("a tiny request", with_memory("1"), 999),
            ("half the node", with_memory("2G"), 500),
            ("nearly all", with_memory("3999M"), 3),
            ("more than all", with_memory("8G"), 3),
            (
                "a pod's share",
                json!({"containers": [container("c", json!({"memory": "1G"}), json!({})), {"name": "d"}],
                       "resources": {"requests": {"memory": "3G"}}}),
                500,
            ),
        ];
        for (case, spec, score) in cases {
            let pod = record(spec);
            assert_eq!(oom_score_adj(&pod, &pod.spec().containers[0], CAPACITY), score, "{case}");
        }
    }

    #[test]
    fn a_sidecar_outlives_those_it_serves() {
        let pod = record(json!({
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "1M"}}}],
            "containers": [container("a", json!({"memory": "1G"}), json!({})), container("b", json!({"memory": "2G"}), json!({}))],
        }));
        let sidecar = &pod.spec().init_containers.as_ref().unwrap()[0];
        assert_eq!(oom_score_adj(&pod, sidecar, CAPACITY), 750);
    }

    #[test]
    fn node_critical_pods_have_the_guaranteed_oom_score() {
        let spec = |priority: Value| json!({"containers": [{"name": "c"}], "priorityClassName": "system-node-critical", "priority": priority});
        let score = |pod: &PodRecord| oom_score_adj(pod, &pod.spec().containers[0], CAPACITY);
        let mut pod = record(spec(Value::Null));
        assert_eq!(score(&pod), -997);
        pod.source = SourceKind::Api;
        assert_eq!(score(&pod), 1_000, "an apiserver's pod needs the priority, too");
        let mut pod = record(spec(2_000_001_000.into()));
        pod.source = SourceKind::Api;
        assert_eq!(score(&pod), -997);
    }
}
