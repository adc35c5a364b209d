//! SELinux on this host. limpet labels neither processes nor volumes, as containerd with `enable_selinux = false`: where
//! SELinux is off or permissive that changes nothing.

use std::path::Path;

use k8s_openapi::api::core::v1::{PodSpec, SELinuxOptions};

/// Where SELinux's file system is mounted.
const FILE_SYSTEM: &str = "/sys/fs/selinux";

/// What an enforcing host means, for the log and `limpet doctor`.
pub const UNLABELLED: &str =
    "enforces, and limpet labels neither processes nor volumes; pods with seLinuxOptions are refused";

/// Why a Pod that names a label is refused on a host that enforces.
pub const REFUSED: &str = "this host enforces SELinux, and limpet does not set the labels of seLinuxOptions; \
     remove seLinuxOptions, or set SELinux to permissive";

/// Whether SELinux enforces its policy on this host.
pub fn is_enforcing() -> bool {
    enforces(Path::new(FILE_SYSTEM))
}

fn enforces(file_system: &Path) -> bool {
    std::fs::read_to_string(file_system.join("enforce")).is_ok_and(|value| value.trim() == "1")
}

/// Whether the Pod names a label for its processes.
pub fn names_labels(spec: &PodSpec) -> bool {
    let named = |options: Option<&SELinuxOptions>| options.is_some_and(|options| *options != SELinuxOptions::default());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    named(spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref()))
        || containers.into_iter().any(|container| {
            named(container.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref()))
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_an_enforcing_policy_enforces() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!enforces(dir.path()), "no SELinux");
        for (mode, expected) in [("1", true), ("1\n", true), ("0", false), ("", false)] {
            std::fs::write(dir.path().join("enforce"), mode).unwrap();
            assert_eq!(enforces(dir.path()), expected, "{mode:?}");
        }
    }

    #[test]
    fn a_label_is_one_of_the_pod_or_of_a_container() {
        let spec = |pod: serde_json::Value, container: serde_json::Value| -> PodSpec {
            serde_json::from_value(serde_json::json!({
                "securityContext": {"seLinuxOptions": pod},
                "containers": [{"name": "a", "securityContext": {"seLinuxOptions": container}}],
            }))
            .unwrap()
        };
        let (none, level) = (serde_json::json!({}), serde_json::json!({"level": "s0:c1,c2"}));
        assert!(!names_labels(&spec(none.clone(), none.clone())));
        assert!(names_labels(&spec(level.clone(), none.clone())) && names_labels(&spec(none, level)));
    }
}
