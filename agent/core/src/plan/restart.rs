//! Whether a container that exited is restarted: by its rules, else by its own policy, else by the pod's.

use k8s_openapi::api::core::v1::Container;

use super::{exit_code, restart_all, restart_policy};
use crate::state::{ContainerSlot, PodState, matching_rule};
use limpet_model::pod::Role;

/// Whether an exited container is to be restarted.
pub fn wants_restart(pod: &PodState, slot: &ContainerSlot) -> bool {
    let Some(code) = exit_code(slot) else { return false };
    if restart_all::is_superseded(pod, slot) {
        return true;
    }
    // One that was ended for a failed probe has failed, whatever its exit code.
    let failed = code != 0 || slot.instance.as_ref().is_some_and(|one| one.failed_probe().is_some());
    let by_policy = || restarts(restart_policy(pod), pod.container_spec(&slot.name), code, failed);
    match slot.role {
        Role::Sidecar => true,
        Role::Ephemeral => false,
        // Its success is its end, whatever its rules.
        Role::Init => code != 0 && by_policy(),
        Role::Main => by_policy(),
    }
}

/// kubelet's `ContainerShouldRestart`: the first rule that applies decides, and without one the policy.
fn restarts(of_pod: &str, container: Option<&Container>, code: i32, failed: bool) -> bool {
    if container.and_then(|one| matching_rule(one, code)).is_some() {
        return true;
    }
    match container.and_then(|one| one.restart_policy.as_deref()).unwrap_or(of_pod) {
        "Never" => false,
        "OnFailure" => failed,
        _ => true,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn rules_decide_before_the_containers_policy_and_that_before_the_pods() {
        let in_2_3 = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [2, 3] } }]);
        let not_in_0 = json!([{ "action": "Restart", "exitCodes": { "operator": "NotIn", "values": [0] } }]);
        let none = Value::Null;
        // The pod's policy, the container's, its rules, and whether exits with 0, 1 and 2 restart it.
        let cases: [(&str, Option<&str>, &Value, [bool; 3]); 10] = [
            ("Always", None, &none, [true, true, true]),
            ("OnFailure", None, &none, [false, true, true]),
            ("Never", None, &none, [false, false, false]),
            ("Never", Some("Always"), &none, [true, true, true]),
            ("Never", Some("OnFailure"), &none, [false, true, true]),
            ("Always", Some("Never"), &none, [false, false, false]),
            ("Always", Some("Never"), &in_2_3, [false, false, true]),
            ("Always", Some("Never"), &not_in_0, [false, true, true]),
            ("Always", Some("OnFailure"), &in_2_3, [false, true, true]),
            // The API refuses rules without a policy; kubelet ignores them.
            ("Never", None, &in_2_3, [false, false, false]),
        ];
        for (of_pod, own, rules, expected) in cases {
            let container = json!({ "name": "a", "restartPolicy": own, "restartPolicyRules": rules });
            let container: Container = serde_json::from_value(container).unwrap();
            let found = [0, 1, 2].map(|code| restarts(of_pod, Some(&container), code, code != 0));
            assert_eq!(found, expected, "{of_pod} {own:?} {rules}");
        }
    }
}
