//! The roles of a pod's containers in its life.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// What a container is for. It decides its order, whether it restarts, and what waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs to completion before the next init container or the regular ones start.
    Init,
    /// An init container with `restartPolicy: Always`. It starts in the order of the init containers, and runs beside
    /// the others.
    Sidecar,
    /// A regular container.
    Main,
    /// Added to a running pod for debugging, and never restarted.
    Ephemeral,
}

impl Role {
    /// The containers of `spec` with their roles: init containers and sidecars in their order, then regular and ephemeral
    /// ones.
    pub fn assign(spec: &PodSpec) -> impl Iterator<Item = (&str, Self)> {
        let inits =
            spec.init_containers.iter().flatten().map(|container| (container.name.as_str(), Self::of_init(container)));
        let mains = spec.containers.iter().map(|container| (container.name.as_str(), Self::Main));
        let ephemeral =
            spec.ephemeral_containers.iter().flatten().map(|container| (container.name.as_str(), Self::Ephemeral));
        inits.chain(mains).chain(ephemeral)
    }

    /// The role of an init container.
    pub(crate) fn of_init(container: &Container) -> Self {
        if container.restart_policy.as_deref() == Some("Always") { Self::Sidecar } else { Self::Init }
    }

    /// The path of the container of that name in a Pod, as events name it (kubelet's `fieldPath`).
    pub fn field_path(self, name: &str) -> String {
        let list = match self {
            Self::Init | Self::Sidecar => "initContainers",
            Self::Main => "containers",
            Self::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{name}}}")
    }

    /// Whether the container is one of `spec.initContainers`.
    pub fn is_init_container(self) -> bool {
        match self {
            Self::Init | Self::Sidecar => true,
            Self::Main | Self::Ephemeral => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_and_the_restart_policy_of_a_container_give_its_role() {
        let spec: PodSpec = serde_json::from_value(json!({
            "initContainers": [{ "name": "migrate" }, { "name": "proxy", "restartPolicy": "Always" },
                { "name": "never", "restartPolicy": "Never" }],
            "containers": [{ "name": "app", "restartPolicy": "Always" }],
            "ephemeralContainers": [{ "name": "debug" }],
        }))
        .unwrap();
        let roles: Vec<_> = Role::assign(&spec).collect();
        let expected = [
            ("migrate", Role::Init),
            ("proxy", Role::Sidecar),
            ("never", Role::Init),
            ("app", Role::Main),
            ("debug", Role::Ephemeral),
        ];
        assert_eq!(roles, expected);
        assert!(Role::Sidecar.is_init_container() && !Role::Ephemeral.is_init_container());
    }
}
