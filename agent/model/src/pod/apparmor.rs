//! Which AppArmor profile a Pod specifies for a container. The former annotations have become fields with the
//! defaults.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec};

use super::qos::all_containers;

/// The container's profile, or else its pod's; `None` if the Pod has none.
pub fn profile_of<'a>(pod: &'a PodSpec, container: &'a Container) -> Option<&'a AppArmorProfile> {
    let of_container = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    of_container.or_else(|| pod.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref()))
}

/// What the Pod's containers require of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppArmorNeeds<'a> {
    /// Whether a profile is specified for one of its containers, even the default one: kubelet then requires
    /// AppArmor.
    pub host: bool,
    /// The profiles that must be loaded.
    pub loaded: Vec<&'a str>,
}

/// What `pod` requires of the host. Privileged containers get no profile, but count like others.
pub fn needs(pod: &PodSpec) -> AppArmorNeeds<'_> {
    let profiles = all_containers(pod).filter_map(|container| profile_of(pod, container));
    let mut needs = AppArmorNeeds::default();
    for profile in profiles.filter(|profile| profile.type_ != "Unconfined") {
        needs.host = true;
        if profile.type_ == "Localhost" {
            needs.loaded.extend(profile.localhost_profile.as_deref());
        }
    }
    needs
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_its_own_profile_or_the_pods() {
        let profile = serde_json::json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "own"}});
        let pod_with = |pod: &str, container: &serde_json::Value| -> PodSpec {
            let profile = serde_json::json!({"type": pod, "localhostProfile": "pods"});
            let context =
                if pod.is_empty() { serde_json::json!({}) } else { serde_json::json!({"appArmorProfile": profile}) };
            serde_json::from_value(serde_json::json!({
                "securityContext": context, "containers": [{"name": "a", "securityContext": container}],
            }))
            .unwrap()
        };
        let none = serde_json::json!({});
        for (pod, container, host, loaded) in [
            ("", &none, false, &[][..]),
            ("Unconfined", &none, false, &[]),
            ("RuntimeDefault", &none, true, &[]),
            ("Localhost", &none, true, &["pods"]),
            ("Unconfined", &profile, true, &["own"]),
        ] {
            let spec = pod_with(pod, container);
            assert_eq!(needs(&spec), AppArmorNeeds { host, loaded: loaded.to_vec() }, "{pod} {container}");
        }
    }
}
