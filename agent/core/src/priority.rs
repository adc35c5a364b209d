//! The priority of a pod, which decides what is ended first, and what never (`pkg/kubelet/types/pod_update.go`,
//! `IsCriticalPod`).

use limpet_model::pod::PodRecord;

/// The lowest priority of critical pods (that of `system-cluster-critical`).
pub(crate) const CRITICAL: i32 = 2_000_000_000;

/// Whether its priority keeps the pod from being ended or refused.
pub fn is_critical(record: &PodRecord) -> bool {
    priority(record) >= CRITICAL
}

/// The pod's priority. Without an apiserver, only Kubernetes' own two classes are known.
pub fn priority(record: &PodRecord) -> i32 {
    known_priority(record).unwrap_or(0)
}

/// The pod's priority, if it has one.
pub fn known_priority(record: &PodRecord) -> Option<i32> {
    let by_class = || match record.spec().priority_class_name.as_deref() {
        Some("system-node-critical") => Some(CRITICAL + 1_000),
        Some("system-cluster-critical") => Some(CRITICAL),
        _ => None,
    };
    record.spec().priority.or_else(by_class)
}
