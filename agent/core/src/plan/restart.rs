//! Whether an exited container is restarted. One that was ended for a newer version of itself always is; others by
//! their rules, or else by their own policy, or else by the pod's.

use k8s_openapi::api::core::v1::Container;

use super::{exit_code, restart_all, restart_policy};
use crate::state::{ContainerSlot, PodState, matching_rule};
use limpet_model::pod::Role;

/// Whether an exited container is restarted.
pub fn wants_restart(pod: &PodState, slot: &ContainerSlot) -> bool {
    let Some(code) = exit_code(slot) else { return false };
    if restart_all::is_superseded(pod, slot) || slot.instance.as_ref().is_some_and(|instance| instance.replaced) {
        return true;
    }
    // A container that was ended for a failed probe has failed, whatever its exit code.
    let failed = code != 0 || slot.instance.as_ref().is_some_and(|instance| instance.failed_probe().is_some());
    let by_policy = || restarts(restart_policy(pod), pod.container_spec(&slot.name), code, failed);
    match slot.role {
        Role::Sidecar => true,
        Role::Ephemeral => false,
        // Its success is final, whatever its rules.
        Role::Init => code != 0 && by_policy(),
        Role::Main => by_policy(),
    }
}

/// kubelet's `ContainerShouldRestart`: the first rule that applies decides, or else the policy.
fn restarts(of_pod: &str, container: Option<&Container>, code: i32, failed: bool) -> bool {
    if container.and_then(|container| matching_rule(container, code)).is_some() {
        return true;
    }
    match container.and_then(|container| container.restart_policy.as_deref()).unwrap_or(of_pod) {
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
    use crate::fixtures::{exit, image, instance, now, pod, ready, version};
    use crate::outcome::begin;
    use crate::plan::{Action, Step, plan};
    use crate::state::Now;

    #[test]
    fn one_that_was_ended_for_its_new_image_starts_again_whatever_its_policy() {
        // The role's policy, whether it runs when its image is edited, and whether it starts again.
        let cases =
            [("Never", true, true), ("OnFailure", true, true), ("Never", false, false), ("OnFailure", false, false)];
        for (policy, runs, starts) in cases {
            let mut pod = ready(pod(policy, &[], &["a"]));
            let mut first = instance(&pod.containers[0], 0);
            let now: Now = now();
            if !runs {
                first.end(exit(0), now);
            }
            pod.containers[0].succeed(first);
            let mut edited = pod.record.pod.clone();
            edited.spec.as_mut().unwrap().containers[0].image = Some("app:2".into());
            pod.update(version(edited));
            pod.containers[0].image = image();
            if let Step::Do(actions) = plan(&pod, crate::fixtures::READY, now.mono) {
                assert!(
                    actions.iter().all(|action| matches!(action, Action::Stop(..)) == runs),
                    "{policy}: {actions:?}"
                );
                actions.iter().for_each(|action| begin(&mut pod, action));
            }
            if runs {
                pod.containers[0].instance.as_mut().unwrap().end(exit(0), now);
            }
            assert_eq!(wants_restart(&pod, &pod.containers[0]), starts, "{policy}, runs: {runs}");
        }
    }

    #[test]
    fn an_init_container_runs_to_its_end_with_the_image_that_it_has() {
        let mut pod = ready(pod("Never", &["i"], &["a"]));
        let first = instance(&pod.containers[0], 0);
        pod.containers[0].succeed(first);
        let mut edited = pod.record.pod.clone();
        edited.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].image = Some("app:2".into());
        assert_eq!(pod.update(version(edited)), [0]);
        pod.containers[0].image = image();
        let Step::Do(actions) = plan(&pod, crate::fixtures::READY, now().mono) else { return };
        assert!(!actions.iter().any(|action| matches!(action, Action::Stop(..))), "{actions:?}");
    }

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
        for (of_pod, container_policy, rules, expected) in cases {
            let container = json!({ "name": "a", "restartPolicy": container_policy, "restartPolicyRules": rules });
            let container: Container = serde_json::from_value(container).unwrap();
            let restarted = [0, 1, 2].map(|code| restarts(of_pod, Some(&container), code, code != 0));
            assert_eq!(restarted, expected, "{of_pod} {container_policy:?} {rules}");
        }
    }
}
