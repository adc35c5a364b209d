//! Security contexts.

use k8s_openapi::api::core::v1::{Container, PodSpec, SeccompProfile};

use super::one_of;
use crate::pod::Fault;

const MAX_ID: i64 = 2_147_483_647;

fn id(path: String, id: Option<i64>, faults: &mut Vec<Fault>) {
    if let Some(id) = id.filter(|id| !(0..=MAX_ID).contains(id)) {
        faults.push(Fault::error(path, format!("{id} is not between 0 and {MAX_ID}")));
    }
}

pub(super) fn pod(spec: &PodSpec, faults: &mut Vec<Fault>) {
    let Some(context) = &spec.security_context else { return };
    let at = |field: &str| format!("spec.securityContext.{field}");
    id(at("runAsUser"), context.run_as_user, faults);
    id(at("runAsGroup"), context.run_as_group, faults);
    id(at("fsGroup"), context.fs_group, faults);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(at(&format!("supplementalGroups[{index}]")), Some(*group), faults);
    }
    let policy = context.supplemental_groups_policy.as_deref();
    one_of(&at("supplementalGroupsPolicy"), policy, &["Merge", "Strict"], faults);
    let policy = context.fs_group_change_policy.as_deref();
    one_of(&at("fsGroupChangePolicy"), policy, &["Always", "OnRootMismatch"], faults);
    seccomp(&at("seccompProfile"), context.seccomp_profile.as_ref(), faults);
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = at(&format!("sysctls[{index}].name"));
        if !is_sysctl(&sysctl.name) {
            faults.push(Fault::error(path, format!("{:?} is no sysctl", sysctl.name)));
        } else if spec.host_network == Some(true) && sysctl.name.starts_with("net") {
            faults.push(Fault::error(path, "net sysctls belong to the host with hostNetwork: true"));
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        part.bytes().all(|byte| plain(byte) || byte == b'-' || byte == b'_')
            && part.bytes().next().is_some_and(plain)
            && part.bytes().last().is_some_and(plain)
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

pub(super) fn container(path: &str, spec: &PodSpec, container: &Container, faults: &mut Vec<Fault>) {
    let Some(context) = &container.security_context else { return };
    let at = |field: &str| format!("{path}.securityContext.{field}");
    id(at("runAsUser"), context.run_as_user, faults);
    id(at("runAsGroup"), context.run_as_group, faults);
    seccomp(&at("seccompProfile"), context.seccomp_profile.as_ref(), faults);
    let of_pod = spec.security_context.as_ref();
    let user = context.run_as_user.or(of_pod.and_then(|context| context.run_as_user));
    let non_root = context.run_as_non_root.or(of_pod.and_then(|context| context.run_as_non_root));
    if non_root == Some(true) && user == Some(0) {
        faults.push(
            Fault::error(at("runAsNonRoot"), "is true, and runAsUser is 0, which is root")
                .with_remedy("set runAsUser to another number"),
        );
    }
    let adds_admin = || {
        let added = context.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
        added.map(|name| name.trim_start_matches("CAP_")).any(|name| name == "SYS_ADMIN")
    };
    if context.allow_privilege_escalation == Some(false) && (context.privileged == Some(true) || adds_admin()) {
        faults.push(Fault::error(
            at("allowPrivilegeEscalation"),
            "cannot be false for a privileged container or one with CAP_SYS_ADMIN",
        ));
    }
}

fn seccomp(path: &str, profile: Option<&SeccompProfile>, faults: &mut Vec<Fault>) {
    let Some(profile) = profile else { return };
    one_of(&format!("{path}.type"), Some(&profile.type_), &["Unconfined", "RuntimeDefault", "Localhost"], faults);
    let file = profile.localhost_profile.as_deref().unwrap_or_default();
    let at = format!("{path}.localhostProfile");
    match (profile.type_.as_str(), file) {
        ("Localhost", "") => faults.push(Fault::error(at, "required with type: Localhost")),
        ("Localhost", file) if file.starts_with('/') || file.split('/').any(|part| part == "..") => {
            faults.push(Fault::error(at, "must be a path below <root-dir>/seccomp without .."));
        }
        ("Localhost", _) | (_, "") => {}
        _ => faults.push(Fault::error(at, "belongs to type: Localhost")),
    }
}
