//! How much swap a container may use: kubelet's `memorySwap.swapBehavior`.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::oom_score::CRITICAL_PRIORITY;
use super::qos::{MEMORY, QosClass, limit, qos_class, request};

/// kubelet's two behaviors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No container swaps.
    #[default]
    NoSwap,
    /// Containers of burstable pods that request memory have a share of the node's swap. It needs cgroup v2.
    LimitedSwap,
}

impl SwapBehavior {
    /// Its name in KubeletConfiguration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSwap => "NoSwap",
            Self::LimitedSwap => "LimitedSwap",
        }
    }
}

/// Bytes of swap that a container may use under `LimitedSwap`: the same share of the node's swap as it requests of
/// the node's memory (kubelet's `calcSwapForBurstablePods`). Pods of a critical priority, containers that request no
/// memory or as much as their limit, and pods that are not burstable get none. kubelet gives none to static pods
/// either, but without an apiserver a node has only those, so here they swap.
pub fn limited_swap(pod: &PodSpec, container: &Container, memory_capacity: u64, swap_capacity: u64) -> u64 {
    let Some(resources) = &container.resources else { return 0 };
    let (requested, limited) = (request(resources, MEMORY), limit(resources, MEMORY));
    let critical = pod.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY);
    if critical || qos_class(pod) != QosClass::Burstable || requested == limited {
        return 0;
    }
    let Ok(requested) = u64::try_from(requested.units()) else { return 0 };
    if memory_capacity == 0 || requested > memory_capacity {
        return 0;
    }
    let share = u128::from(requested) * u128::from(swap_capacity) / u128::from(memory_capacity);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn swap_is_shared_out_by_requests_of_memory() {
        let burstable = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        let cases = [
            (burstable.clone(), json!({}), 512 << 20),
            (json!({"requests": {"memory": "1Gi"}}), json!({}), 512 << 20),
            (json!({"requests": {"memory": "8Gi"}}), json!({}), 4 << 30),
            (json!({"requests": {"memory": "9Gi"}}), json!({}), 0),
            (json!({"requests": {"cpu": "1"}}), json!({}), 0),
            (json!({}), json!({}), 0),
            // A container that only has a limit requests as much.
            (json!({"limits": {"memory": "1Gi"}}), json!({}), 0),
            (json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}), json!({}), 0),
            (json!({"limits": {"memory": "1Gi", "cpu": "1"}}), json!({}), 0),
            (burstable.clone(), json!({"priority": 2_000_000_000}), 0),
            (burstable, json!({"priority": 1_999_999_999}), 512 << 20),
        ];
        for (resources, mut spec, wanted) in cases {
            spec["containers"] = json!([{"name": "c", "resources": resources}]);
            let pod: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(limited_swap(&pod, &pod.containers[0], 8 << 30, 4 << 30), wanted, "{spec}");
        }
    }
}
