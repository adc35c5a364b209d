//! What cannot change in a workload once it exists, as in an apiserver.

use serde_json::Value;

use super::Workload;
use crate::object::key::{ObjectKey, ObjectKind};
use crate::pod::Fault;

/// The fields that cannot change, as JSON pointers below `/spec`.
fn fields(kind: ObjectKind) -> &'static [&'static str] {
    match kind {
        ObjectKind::Deployment | ObjectKind::ReplicaSet | ObjectKind::DaemonSet => &["selector"],
        ObjectKind::StatefulSet => &["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"],
        ObjectKind::Job => &[
            "completions",
            "selector",
            "template",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        ],
        _ => &[],
    }
}

/// Why `next` must not replace `before`.
pub(crate) fn forbidden(key: &ObjectKey, before: &Workload, next: &Workload) -> Option<Fault> {
    let [before, next] =
        [before, next].map(|record| serde_json::from_slice::<Value>(&record.manifest).unwrap_or_default());
    let is_changed = |field: &str| before["spec"][field] != next["spec"][field];
    let is_allowed = |field: &str| field == "completions" && is_elastic(&next["spec"]);
    let changed = fields(key.kind).iter().find(|field| is_changed(field) && !is_allowed(field))?;
    let fault = Fault::error(format!("spec.{changed}"), format!("of {key}: field is immutable"));
    Some(fault.with_remedy(format!("give the changed {} another name, or remove it first", key.kind.as_str())))
}

/// Whether an Indexed Job's completions may change, which is the case together with its parallelism.
fn is_elastic(spec: &Value) -> bool {
    spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"]
}
