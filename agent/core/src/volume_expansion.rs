//! The node's part in the expansion of a volume: when its driver is called, and what the claim's status reports.
//! Pure; kubelet's rules and patches.
//!
//! A cluster's resizer expands the volume and writes `NodeResizePending` into the claim's
//! `allocatedResourceStatuses`, beside the condition `FileSystemResizePending`. The node has the driver expand what
//! is mounted, and writes the new capacity.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use limpet_model::pod::quantity::bytes;

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// The condition of a failed call.
const ERROR: &str = "NodeResizeError";
/// The conditions that a finished expansion removes.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR];
/// The annotation of a claim whose volume was expanded without the nodes.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Volumes that several nodes write to are expanded on each.
const MANY_WRITERS: &str = "ReadWriteMany";

/// What the node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Nothing.
    None,
    /// Its driver is called, and the claim's status reports it.
    Due,
    /// Its driver is called; another node has reported the new capacity.
    Silent,
    /// Its driver is called if its PersistentVolume is larger than the claim's status says, because a resizer from
    /// before Kubernetes 1.31 has expanded it, and does not say that it waits for the node.
    IfLarger,
}

/// The step for a volume whose last known capacity on the node was `known`, in bytes.
pub fn expansion(claim: &PersistentVolumeClaim, known: Option<i64>) -> Expansion {
    let status = claim.status.as_ref();
    let allocated = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get(STORAGE));
    match allocated.map(String::as_str) {
        Some(PENDING | IN_PROGRESS) => return Expansion::Due,
        Some(_) => return Expansion::None,
        None => {}
    }
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let of_many = modes.iter().any(|mode| mode == MANY_WRITERS);
    let excepted = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(NOT_REQUIRED));
    let grown = capacity(claim).zip(known).is_some_and(|(now, before)| now > before);
    if of_many && grown && !excepted {
        return Expansion::Silent;
    }
    let says_nothing = status.is_some_and(|status| status.allocated_resources.is_none());
    let larger = requested(claim).zip(capacity(claim)).is_some_and(|(requested, capacity)| requested > capacity);
    if says_nothing && larger { Expansion::IfLarger } else { Expansion::None }
}

/// The requested size in bytes.
fn requested(claim: &PersistentVolumeClaim) -> Option<i64> {
    bytes(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE)?).ok()
}

/// The capacity in the claim's status, in bytes.
pub fn capacity(claim: &PersistentVolumeClaim) -> Option<i64> {
    bytes(claim.status.as_ref()?.capacity.as_ref()?.get(STORAGE)?).ok()
}

/// The strategic merge patch of the status before the driver is called.
pub fn began(claim: &PersistentVolumeClaim) -> Value {
    patch(claim, json!({ "allocatedResourceStatuses": { STORAGE: IN_PROGRESS } }))
}

/// The strategic merge patch of the status once the driver has expanded the volume to `size`.
pub fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    let status = claim.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default().iter();
    let ended = conditions.filter(|condition| CONDITIONS.contains(&&*condition.type_));
    let ended: Vec<Value> = ended.map(|condition| json!({ "$patch": "delete", "type": condition.type_ })).collect();
    let mut change = json!({ "capacity": { STORAGE: size }, "allocatedResourceStatuses": { STORAGE: null } });
    if !ended.is_empty() {
        change["conditions"] = json!(ended);
    }
    patch(claim, change)
}

/// The strategic merge patch of the status after a failed call. `infeasible`: it is not repeated, and the resizer may
/// revert the request.
pub fn failed(message: &str, infeasible: bool, now: Timestamp) -> Value {
    let condition = json!({
        "type": ERROR, "status": "True", "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "message": format!("failed to expand pvc with {message}"),
    });
    let mut change = json!({ "conditions": [condition] });
    if infeasible {
        change["allocatedResourceStatuses"] = json!({ STORAGE: INFEASIBLE });
    }
    // As in kubelet, it applies whatever else has changed meanwhile.
    json!({ "status": change })
}

/// A patch that applies only to this version.
fn patch(claim: &PersistentVolumeClaim, status: Value) -> Value {
    json!({ "metadata": { "resourceVersion": claim.metadata.resource_version }, "status": status })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn claim(mode: &str, status: Value) -> PersistentVolumeClaim {
        let metadata = json!({"name": "data", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"accessModes": [mode]}, "status": status}))
            .unwrap()
    }

    #[test]
    fn a_driver_is_called_when_the_resizer_waits_for_the_node() {
        let with_status =
            |status: &str| json!({"allocatedResourceStatuses": {"storage": status}, "capacity": {"storage": "1Gi"}});
        let grown = || json!({"capacity": {"storage": "2Gi"}});
        for (mode, status, known, wanted) in [
            ("ReadWriteOnce", with_status("NodeResizePending"), Some(1 << 30), Expansion::Due),
            ("ReadWriteOnce", with_status("NodeResizeInProgress"), None, Expansion::Due),
            ("ReadWriteOnce", with_status("NodeResizeInfeasible"), Some(1 << 30), Expansion::None),
            ("ReadWriteOnce", with_status("ControllerResizeInProgress"), Some(1 << 30), Expansion::None),
            ("ReadWriteOnce", grown(), Some(1 << 30), Expansion::None),
            ("ReadWriteMany", grown(), Some(1 << 30), Expansion::Silent),
            ("ReadWriteMany", grown(), Some(2 << 30), Expansion::None),
            ("ReadWriteMany", grown(), None, Expansion::None),
        ] {
            assert_eq!(expansion(&claim(mode, status.clone()), known), wanted, "{mode} {status} {known:?}");
        }
        let mut asked = claim("ReadWriteOnce", json!({"capacity": {"storage": "1Gi"}}));
        let resources = |size: &str| serde_json::from_value(json!({"requests": {"storage": size}})).unwrap();
        asked.spec.as_mut().unwrap().resources = Some(resources("2Gi"));
        assert_eq!(expansion(&asked, None), Expansion::IfLarger);
        asked.spec.as_mut().unwrap().resources = Some(resources("1Gi"));
        assert_eq!(expansion(&asked, None), Expansion::None);
        let mut excepted = claim("ReadWriteMany", grown());
        excepted.metadata.annotations = Some([(NOT_REQUIRED.to_owned(), "true".to_owned())].into());
        assert_eq!(expansion(&excepted, Some(1 << 30)), Expansion::None);
    }

    #[test]
    fn the_claims_status_reports_it_as_kubelets() {
        let conditions = json!([{"type": "FileSystemResizePending", "status": "True"}, {"type": "ModifyingVolume", "status": "True"}]);
        let claim = claim("ReadWriteOnce", json!({"capacity": {"storage": "1Gi"}, "conditions": conditions}));
        assert_eq!(began(&claim)["status"], json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}));
        let done = finished(&claim, &Quantity("2Gi".to_owned()));
        let status = json!({"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
            "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}]});
        assert_eq!(done, json!({"metadata": {"resourceVersion": "7"}, "status": status}));
        let failed = |infeasible| failed("no room", infeasible, Timestamp::UNIX_EPOCH);
        let condition = &failed(false)["status"]["conditions"][0];
        assert_eq!(
            (&condition["message"], &condition["lastTransitionTime"]),
            (&json!("failed to expand pvc with no room"), &json!("1970-01-01T00:00:00Z"))
        );
        assert!(failed(false)["status"]["allocatedResourceStatuses"].is_null());
        assert_eq!(failed(true)["status"]["allocatedResourceStatuses"], json!({"storage": "NodeResizeInfeasible"}));
    }
}
