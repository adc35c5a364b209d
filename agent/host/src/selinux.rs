//! SELinux on this host: whether it is enabled, the policy's labels for containers, and the labels of files.
//!
//! Labels are set if SELinux is enabled, enforcing or not, and the policy has labels for containers; see
//! [`limpet_model::selinux`]. Otherwise nothing is labelled, and no file is checked.

mod relabel;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use k8s_openapi::api::core::v1::{PodSpec, SELinuxOptions};

pub use self::relabel::{inherit, open_to_plugins, relabel};
use limpet_model::selinux::{ContainerContexts, policy_name};

/// Where SELinux's file system is mounted.
const FILE_SYSTEM: &str = "/sys/fs/selinux";
/// The label of this process: `kernel` before a policy is loaded.
const OWN_LABEL: &str = "/proc/self/attr/current";
/// Names the policy.
const CONFIG: &str = "/etc/selinux/config";
/// The labels of containers if the policy has none of its own.
const SHARED_CONTEXTS: &str = "/usr/share/containers/selinux/contexts";
/// The file within the directory of a policy.
const CONTEXTS: &str = "contexts/lxc_contexts";

/// The consequence of an enforcing host without labels for containers, for the log and `limpet doctor`.
pub const UNLABELLED: &str = "containers and volumes are not labelled, and pods with seLinuxOptions are refused";

/// Why the policy's labels for containers are unknown.
#[derive(Debug, thiserror::Error)]
pub enum ContextsError {
    /// The configuration does not name a policy.
    #[error("{CONFIG} does not set SELINUXTYPE, the policy")]
    NoPolicy,
    /// The file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is incomplete.
    #[error("{}: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
}

/// Whether SELinux is enabled, with a policy. This does not change until the next boot.
pub fn is_enabled() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| enabled(Path::new(FILE_SYSTEM), Path::new(OWN_LABEL)))
}

fn enabled(file_system: &Path, own_label: &Path) -> bool {
    file_system.join("enforce").exists()
        && std::fs::read_to_string(own_label).is_ok_and(|label| label.trim_end_matches(['\0', '\n']) != "kernel")
}

/// Whether SELinux enforces its policy on this host.
pub fn is_enforcing() -> bool {
    enforces(Path::new(FILE_SYSTEM))
}

fn enforces(file_system: &Path) -> bool {
    std::fs::read_to_string(file_system.join("enforce")).is_ok_and(|value| value.trim() == "1")
}

/// The name of the policy, as `/etc/selinux/config` has it.
pub fn policy() -> Option<String> {
    policy_name(&std::fs::read_to_string(CONFIG).ok()?)
}

/// The policy's labels for containers, and the file that has them.
///
/// # Errors
///
/// The policy has none.
pub fn contexts() -> Result<(PathBuf, ContainerContexts), ContextsError> {
    contexts_below(Path::new("/"))
}

fn contexts_below(root: &Path) -> Result<(PathBuf, ContainerContexts), ContextsError> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let mut path = below(SHARED_CONTEXTS);
    if !path.exists() {
        let config = std::fs::read_to_string(below(CONFIG)).unwrap_or_default();
        let policy = policy_name(&config).ok_or(ContextsError::NoPolicy)?;
        path = below(CONFIG).with_file_name(policy).join(CONTEXTS);
    }
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|source| ContextsError::Read { path: path.clone(), source })?;
    match ContainerContexts::parse(&text) {
        Ok(contexts) => Ok((path, contexts)),
        Err(reason) => Err(ContextsError::Invalid { path, reason }),
    }
}

/// Whether the loaded policy has `label`; `true` if this process may not check.
pub fn knows(label: &str) -> bool {
    let asked = std::fs::write(Path::new(FILE_SYSTEM).join("context"), label);
    !asked.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
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
    fn it_is_on_once_a_policy_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let label = dir.path().join("current");
        assert!(!enabled(dir.path(), &label), "no SELinux");
        std::fs::write(dir.path().join("enforce"), "0").unwrap();
        for (label_text, expected) in [("kernel\0", false), ("system_u:system_r:unconfined_t:s0\0", true)] {
            std::fs::write(&label, label_text).unwrap();
            assert_eq!(enabled(dir.path(), &label), expected, "{label_text:?}");
        }
    }

    #[test]
    fn the_labels_of_containers_are_the_of_policy() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let file = |kind: &str| format!("process = \"u:r:{kind}:s0\"\nfile = \"u:object_r:{kind}_file_t:s0\"\n");
        let locate = || {
            let located = contexts_below(root.path());
            let path = |path: PathBuf| path.strip_prefix(root.path()).unwrap().display().to_string();
            located.map(|(at, contexts)| (path(at), contexts.process.to_string()))
        };
        assert!(matches!(locate(), Err(ContextsError::NoPolicy)));
        write("etc/selinux/config", "SELINUXTYPE=default\n");
        assert!(matches!(locate(), Err(ContextsError::Read { .. })));
        write("etc/selinux/default/contexts/lxc_contexts", "# none\n");
        assert!(matches!(locate(), Err(ContextsError::Invalid { .. })));
        write("etc/selinux/default/contexts/lxc_contexts", &file("one"));
        let of_policy = ("etc/selinux/default/contexts/lxc_contexts".to_owned(), "u:r:one:s0".to_owned());
        assert_eq!(locate().unwrap(), of_policy);
        write("usr/share/containers/selinux/contexts", &file("all"));
        let shared = ("usr/share/containers/selinux/contexts".to_owned(), "u:r:all:s0".to_owned());
        assert_eq!(locate().unwrap(), shared);
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
