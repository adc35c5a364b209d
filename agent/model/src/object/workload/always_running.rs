//! What pods that always run must not have: those of all workloads but Jobs.

use super::template::PodTemplate;
use crate::pod::Fault;

/// The faults of a template of such pods.
pub(super) fn of_pods(template: &PodTemplate, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let policy = template.restart_policy();
    if policy != "Always" {
        let message = format!("Unsupported value: {policy:?}: supported values: \"Always\"");
        faults.push(Fault::error(format!("{path}.spec.restartPolicy"), message));
    }
    if !template.spec["activeDeadlineSeconds"].is_null() {
        let message = "Forbidden: not supported in pods that always run";
        faults.push(Fault::error(format!("{path}.spec.activeDeadlineSeconds"), message));
    }
    faults
}
