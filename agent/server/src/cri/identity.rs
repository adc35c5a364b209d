//! A pod's names and timestamps in CRI's terms.

use jiff::Timestamp;
use limpet_containerd::record::{LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID};
use limpet_core::status::observed::ObservedPod;
use limpet_model::container::pod_id;
use limpet_model::pod::PodRecord;

pub(super) fn sandbox_id(pod: &ObservedPod) -> String {
    pod_id(&pod.record.uid)
}

/// kubelet's labels that name a pod.
pub(super) fn pod_labels(record: &PodRecord) -> [(String, String); 3] {
    [
        (LABEL_POD_NAME, record.key.name()),
        (LABEL_POD_NAMESPACE, record.key.namespace()),
        (LABEL_POD_UID, record.uid.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// A timestamp as CRI has it, in nanoseconds since 1970.
pub(super) fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(0)
}
