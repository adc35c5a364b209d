//! Which memory the kernel reserves for pods, and above which use it throttles them: kubelet's `MemoryQoS`
//! (`memoryReservationPolicy`, `memoryThrottlingFactor`), with cgroup v2.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::qos::{MEMORY, QosClass, all_containers, limit, names_any, qos_class, request};
use super::quantity::Amount;
use super::totals::pod_request;

/// What is configured. By default nothing is set.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryQos {
    /// `TieredReservation`: requested memory is reserved, strictly for guaranteed pods and if possible for burstable
    /// ones.
    pub keeps_requests: bool,
    /// `memoryThrottlingFactor`, above 0 and at most 1: which part of the memory between request and limit can be
    /// used without throttling.
    pub throttling: Option<f64>,
}

/// The files of one cgroup, in bytes. Absent ones are not changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFiles {
    /// The kernel never reclaims it.
    pub min: Option<u64>,
    /// The kernel reclaims it only if nothing else is left.
    pub low: Option<u64>,
    /// Above it the kernel reclaims memory, and throttles allocations.
    pub high: Option<u64>,
}

impl MemoryFiles {
    /// Each file that is set, by its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [("memory.min", self.min), ("memory.low", self.low), ("memory.high", self.high)];
        all.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)))
    }

    fn keeping(class: QosClass, bytes: u64) -> Self {
        match class {
            QosClass::Guaranteed => Self { min: Some(bytes), ..Self::default() },
            QosClass::Burstable | QosClass::BestEffort => Self { low: Some(bytes), ..Self::default() },
        }
    }
}

fn bytes(amount: Amount) -> u64 {
    u64::try_from(amount.units()).unwrap_or(0)
}

impl MemoryQos {
    pub fn is_set(&self) -> bool {
        self.keeps_requests || self.throttling.is_some()
    }

    /// The files of a container's cgroup (kubelet's `generateLinuxContainerResources`). `allocatable` is the node's
    /// memory for pods, which is the limit of a container without one; `page` is the kernel's page size.
    pub fn of_container(&self, pod: &PodSpec, container: &Container, allocatable: u64, page: u64) -> MemoryFiles {
        if !self.is_set() {
            return MemoryFiles::default();
        }
        let resources = container.resources.as_ref();
        let requested = resources.map_or(0, |resources| bytes(request(resources, MEMORY)));
        let limited = resources.map_or(0, |resources| bytes(limit(resources, MEMORY)));
        let kept = match self.keeps_requests && requested != 0 {
            true => MemoryFiles::keeping(qos_class(pod), requested),
            // This also resets a container that had them before it was resized.
            false => MemoryFiles { min: Some(0), low: Some(0), high: None },
        };
        // The pod's limit throttles it in the pod's cgroup.
        let is_limited_by_pod = limited == 0 && pod_memory_limit(pod) != 0;
        let slows = !is_limited_by_pod && (requested != limited || requested == 0);
        let most = if limited == 0 { allocatable } else { limited };
        let high = self.throttling.filter(|_| slows).and_then(|factor| threshold(requested, most, factor, page));
        MemoryFiles { high, ..kept }
    }

    /// The files of a pod's cgroup (kubelet's `ResourceConfigForPod`, `ApplyPodLevelMemoryHigh`).
    pub fn of_pod(&self, pod: &PodSpec, page: u64) -> MemoryFiles {
        let requested = bytes(pod_request(pod, MEMORY));
        let kept = match self.keeps_requests && requested != 0 {
            true => MemoryFiles::keeping(qos_class(pod), requested),
            false => MemoryFiles::default(),
        };
        let limited = pod_limit_with_own(pod);
        let slows = limited != 0 && requested != limited;
        let high = self.throttling.filter(|_| slows).and_then(|factor| threshold(requested, limited, factor, page));
        MemoryFiles { high, ..kept }
    }
}

/// The memory limit in `spec.resources`.
fn pod_memory_limit(pod: &PodSpec) -> u64 {
    pod.resources
        .as_ref()
        .filter(|resources| names_any(resources))
        .map_or(0, |resources| bytes(limit(resources, MEMORY)))
}

/// The memory limit of a pod with resources of its own; zero if it has none, or if not all of its containers have
/// limits.
fn pod_limit_with_own(pod: &PodSpec) -> u64 {
    let Some(requirements) = pod.resources.as_ref().filter(|resources| names_any(resources)) else { return 0 };
    let of_pod = limit(requirements, MEMORY);
    let limit_of = |container: &Container| {
        container.resources.as_ref().map(|resources| limit(resources, MEMORY)).unwrap_or_default()
    };
    let all_limited = all_containers(pod).all(|container| !limit_of(container).is_zero());
    match (of_pod.is_zero(), all_limited) {
        (false, _) => bytes(of_pod),
        (true, true) => bytes(super::totals::together(pod, |resources| limit(resources, MEMORY))),
        (true, false) => 0,
    }
}

/// kubelet's formula, in whole pages; `None` if it would throttle even what is requested.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as in kubelet
fn threshold(requested: u64, most: u64, factor: f64, page: u64) -> Option<u64> {
    let wanted = (requested as f64 + (most as f64 - requested as f64) * factor).max(0.0);
    let high = (wanted as u64) / page.max(1) * page;
    (high != 0 && high > requested).then_some(high)
}

/// What pods of both classes request together, and the levels above them must therefore reserve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedMemory {
    pub guaranteed: u64,
    pub burstable: u64,
}

impl RequestedMemory {
    /// The files of the cgroup of all pods (kubelet's `setMemoryQoS`).
    pub fn of_all_pods(self) -> MemoryFiles {
        let both = self.guaranteed.saturating_add(self.burstable);
        MemoryFiles { min: Some(both), low: Some(self.burstable), high: None }
    }

    /// The files of the burstable level.
    pub fn of_burstable(self) -> MemoryFiles {
        MemoryFiles { low: Some(self.burstable), ..MemoryFiles::default() }
    }
}

/// What a pod adds to [`RequestedMemory`].
pub fn pod_memory_request(pod: &PodSpec) -> RequestedMemory {
    let requested = bytes(pod_request(pod, MEMORY));
    match qos_class(pod) {
        QosClass::Guaranteed => RequestedMemory { guaranteed: requested, burstable: 0 },
        QosClass::Burstable => RequestedMemory { guaranteed: 0, burstable: requested },
        QosClass::BestEffort => RequestedMemory::default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;
    const ALLOCATABLE: u64 = 1_000 * MIB;

    fn pod(resources: Value) -> PodSpec {
        serde_json::from_value(json!({"containers": [{"name": "c", "resources": resources}]})).unwrap()
    }

    fn files(min: Option<u64>, low: Option<u64>, high: Option<u64>) -> MemoryFiles {
        MemoryFiles { min, low, high }
    }

    #[test]
    fn containers_have_kubelets_files() {
        let tiered = MemoryQos { keeps_requests: true, throttling: None };
        let slowed = MemoryQos { keeps_requests: false, throttling: Some(0.9) };
        let both = MemoryQos { keeps_requests: true, throttling: Some(0.5) };
        let guaranteed = json!({"limits": {"cpu": "1", "memory": "100Mi"}});
        let burstable = json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}});
        let unlimited = json!({"requests": {"memory": "100Mi"}});
        let above = json!({"requests": {"memory": "2000Mi"}});
        let none = Some(0);
        let table = [
            (MemoryQos::default(), &burstable, files(None, None, None)),
            (tiered, &guaranteed, files(Some(100 * MIB), None, None)),
            (tiered, &burstable, files(None, Some(100 * MIB), None)),
            (tiered, &json!({}), files(none, none, None)),
            (slowed, &guaranteed, files(none, none, None)),
            (slowed, &burstable, files(none, none, Some(190 * MIB))),
            (slowed, &unlimited, files(none, none, Some(910 * MIB))),
            (slowed, &json!({}), files(none, none, Some(900 * MIB))),
            // What is requested is never throttled.
            (slowed, &above, files(none, none, None)),
            (both, &burstable, files(None, Some(100 * MIB), Some(150 * MIB))),
            (
                both,
                &json!({"requests": {"memory": "1"}, "limits": {"memory": "10000"}}),
                files(None, Some(1), Some(4096)),
            ),
        ];
        for (qos, resources, wanted) in table {
            let pod = pod(resources.clone());
            let files_found = qos.of_container(&pod, &pod.containers[0], ALLOCATABLE, PAGE);
            assert_eq!(files_found, wanted, "{qos:?} {resources}");
        }
    }

    #[test]
    fn pods_have_kubelets_files() {
        let tiered = MemoryQos { keeps_requests: true, throttling: None };
        let both = MemoryQos { keeps_requests: true, throttling: Some(0.5) };
        let guaranteed = pod(json!({"limits": {"cpu": "1", "memory": "100Mi"}}));
        let burstable = pod(json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}}));
        assert_eq!(tiered.of_pod(&guaranteed, PAGE), files(Some(100 * MIB), None, None));
        // Containers are throttled separately.
        assert_eq!(both.of_pod(&burstable, PAGE), files(None, Some(100 * MIB), None));
        assert_eq!(both.of_pod(&pod(json!({})), PAGE), MemoryFiles::default());
        let mut with_resources = pod(json!({}));
        with_resources.resources =
            serde_json::from_value(json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}})).unwrap();
        assert_eq!(both.of_pod(&with_resources, PAGE), files(None, Some(100 * MIB), Some(150 * MIB)));
        let container = both.of_container(&with_resources, &with_resources.containers[0], ALLOCATABLE, PAGE);
        assert_eq!(container, files(Some(0), Some(0), None), "the pod's cgroup slows it");
    }

    #[test]
    fn levels_keep_what_all_pods_request() {
        let requested = RequestedMemory { guaranteed: 3, burstable: 4 };
        assert_eq!(requested.of_all_pods(), files(Some(7), Some(4), None));
        assert_eq!(requested.of_burstable(), files(None, Some(4), None));
        let guaranteed = pod(json!({"limits": {"cpu": "1", "memory": "1Mi"}}));
        assert_eq!(pod_memory_request(&guaranteed), RequestedMemory { guaranteed: MIB, burstable: 0 });
        assert_eq!(pod_memory_request(&pod(json!({}))), RequestedMemory::default());
        assert_eq!(requested.of_all_pods().named().collect::<Vec<_>>(), [("memory.min", 7), ("memory.low", 4)]);
    }
}
