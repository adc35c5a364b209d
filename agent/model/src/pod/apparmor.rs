//! Which AppArmor profile a Pod names for a container. The annotations of old have become fields with the defaults.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec};

use super::qos::all_containers;

/// The container's profile, else its pod's; `None`: the Pod has none.
pub fn profile_of<'a>(pod: &'a PodSpec, container: &'a Container) -> Option<&'a AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    own.or_else(|| pod.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref()))
}

/// What the Pod's containers require of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppArmorNeeds<'a> {
    /// A profile is named for a container of it, be it the default one: kubelet requires AppArmor then.
    pub host: bool,
    /// The profiles that must be loaded.
    pub loaded: Vec<&'a str>,
}

/// What `pod` requires of the host. Privileged containers get no profile, and count as others do.
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
        let own = serde_json::json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "own"}});
        let of = |pod: &str, container: &serde_json::Value| -> PodSpec {
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
            ("Unconfined", &own, true, &["own"]),
        ] {
            let spec = of(pod, container);
            assert_eq!(needs(&spec), AppArmorNeeds { host, loaded: loaded.to_vec() }, "{pod} {container}");
        }
    }
}
