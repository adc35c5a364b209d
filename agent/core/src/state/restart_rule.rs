//! `restartPolicyRules`: the action that a container's rules require after its exit. Part of [`super`].

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use super::{ContainerSlot, PodState};

/// The action that restarts every container of the pod.
pub const RESTART_ALL: &str = "RestartAllContainers";

/// The first rule of the container that names the code. Each action restarts the container, and one of them also all
/// others.
pub fn matching_rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    // The API refuses rules without a policy.
    container.restart_policy.as_ref()?;
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = &rule.exit_codes else { return false };
        let named = codes.values.iter().flatten().any(|value| *value == code);
        named == (codes.operator == "In")
    })
}

impl PodState {
    /// Whether the container has exited in a way that requires a restart of all. One that was ended for an edit of
    /// itself has not, because an edit restarts only what it touches.
    pub fn asks_for_all(&self, slot: &ContainerSlot) -> bool {
        let Some(instance) = &slot.instance else { return false };
        let Some((container, exit)) = self.container_spec(&slot.name).zip(instance.exit()) else { return false };
        (slot.is_current() || instance.asked_before_edit)
            && matching_rule(container, exit.code).is_some_and(|rule| rule.action == RESTART_ALL)
    }
}
