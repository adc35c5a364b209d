//! Validation of the security contexts of the pod and of its containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, SeccompProfile, SecurityContext, Sysctl};

use crate::pod::name::is_sysctl;
use crate::pod::validate::context::each_container;
use crate::pod::validate::field::{At, Faults, items};
use crate::pod::validate::windows;

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// Maximum length of a path in bytes.
const MAX_PROFILE: usize = 4095;
/// Sysctls of the IPC namespace, besides those that begin with `fs.mqueue.`; those of the network begin with `net.`.
const IPC_SYSCTLS: [&str; 10] = [
    "kernel.sem",
    "kernel.shm",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.msg",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
];

/// Validates the pod's security context.
pub(super) fn pod(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let Some(context) = &spec.security_context else { return };
    faults.id(&at.field("fsGroup"), context.fs_group);
    faults.id(&at.field("runAsUser"), context.run_as_user);
    faults.id(&at.field("runAsGroup"), context.run_as_group);
    for (index, group) in items(&context.supplemental_groups) {
        faults.id(&at.field("supplementalGroups").index(index), Some(*group));
    }
    sysctls(&at.field("sysctls"), context.sysctls.as_deref().unwrap_or_default(), spec, faults);
    for (field, value, allowed) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ] {
        faults.if_set_one_of(&at.field(field), value.as_deref(), &allowed);
    }
    seccomp(&at.field("seccompProfile"), context.seccomp_profile.as_ref(), faults);
    windows::options(&at.field("windowsOptions"), context.windows_options.as_ref(), faults);
    apparmor(&at.field("appArmorProfile"), context.app_armor_profile.as_ref(), faults);
}

fn sysctls(at: &At<'_>, sysctls: &[Sysctl], spec: &PodSpec, faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let item = at.index(index);
        let (at, name) = (item.field("name"), sysctl.name.as_str());
        if name.is_empty() {
            faults.required(&at, "");
        } else if !is_sysctl(name) {
            let rule = "parts of lower-case letters, digits, - and _ between dots or slashes";
            faults.malformed(&at, name, "must have at most 253 characters and be the name of a sysctl", rule);
        } else if !names.insert(name) {
            faults.duplicate(&at, name);
        }
        let dotted = with_dots(name);
        if spec.host_network == Some(true) && dotted.starts_with("net.") {
            faults.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
        }
        let ipc = IPC_SYSCTLS.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.");
        if spec.host_ipc == Some(true) && ipc {
            faults.invalid(&at, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

/// If the first separator of a name is a slash, slashes are the separators, and a dot belongs to a component.
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name.replace('/', "."),
        _ => name.to_owned(),
    }
}

/// Validates a container's security context.
pub(super) fn container(spec: &PodSpec, at: &At<'_>, container: &Container, faults: &mut Faults) {
    let Some(context) = &container.security_context else { return };
    faults.id(&at.field("runAsUser"), context.run_as_user);
    faults.id(&at.field("runAsGroup"), context.run_as_group);
    let mount = context.proc_mount.as_deref();
    faults.if_set_one_of(&at.field("procMount"), mount, &["Default", "Unmasked"]);
    if mount == Some("Unmasked") && spec.host_users != Some(false) {
        faults.invalid(&at.field("procMount"), "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(&at.field("seccompProfile"), context.seccomp_profile.as_ref(), faults);
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            faults.invalid(at, false, detail);
        }
        let added = context.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
        if added.clone().any(|capability| capability == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            faults.invalid(at, false, detail);
        }
    }
    windows::options(&at.field("windowsOptions"), context.windows_options.as_ref(), faults);
    apparmor(&at.field("appArmorProfile"), context.app_armor_profile.as_ref(), faults);
    never_root(spec, at, context, faults);
}

/// Kubernetes accepts it, but the container never starts. limpet rejects it at once.
fn never_root(spec: &PodSpec, at: &At<'_>, context: &SecurityContext, faults: &mut Faults) {
    let of_pod = spec.security_context.as_ref();
    let user = context.run_as_user.or(of_pod.and_then(|context| context.run_as_user));
    let non_root = context.run_as_non_root.or(of_pod.and_then(|context| context.run_as_non_root));
    if non_root == Some(true) && user == Some(0) {
        faults.invalid(&at.field("runAsNonRoot"), true, "runAsUser is 0, which is root");
    }
}

fn seccomp(at: &At<'_>, profile: Option<&SeccompProfile>, faults: &mut Faults) {
    let Some(profile) = profile else { return };
    match profile.type_.as_str() {
        "" => faults.required(&at.field("type"), "type is required when seccompProfile is set"),
        kind => faults.if_set_one_of(&at.field("type"), Some(kind), &PROFILE_TYPES),
    }
    let at = at.field("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None) => faults.required(&at, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => faults.descending_path(&at, path),
        (_, Some(path)) => faults.invalid(&at, path, "can only be set when seccomp type is Localhost"),
        (_, None) => {}
    }
}

fn apparmor(at: &At<'_>, profile: Option<&AppArmorProfile>, faults: &mut Faults) {
    let Some(profile) = profile else { return };
    let name = profile.localhost_profile.as_deref();
    let at_name = at.field("localhostProfile");
    match (profile.type_.as_str(), name) {
        ("Localhost", Some(name)) if name.trim() != name => {
            faults.invalid(&at_name, name, "must not be padded with whitespace");
        }
        ("Localhost", None | Some("")) => {
            faults.required(&at_name, "must be set when AppArmor type is Localhost");
        }
        ("Localhost", Some(name)) if name.len() > MAX_PROFILE => faults.too_long(&at_name, MAX_PROFILE),
        ("Localhost", _) | ("RuntimeDefault" | "Unconfined", None) => {}
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            faults.invalid(&at_name, name, "can only be set when AppArmor type is Localhost");
        }
        ("", _) => faults.required(&at.field("type"), "type is required when appArmorProfile is set"),
        (kind, _) => faults.unsupported(&at.field("type"), kind, &PROFILE_TYPES),
    }
}

/// Validates mutually exclusive namespace settings.
pub(super) fn namespaces(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        faults.invalid(&at.field("shareProcessNamespace"), true, detail);
    }
    if spec.host_users != Some(false) {
        return;
    }
    for (field, set) in [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)] {
        if set == Some(true) {
            faults.forbidden(&at.field(field), "when `hostUsers` is false");
        }
    }
    for (list, index, container) in each_container(spec) {
        if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
            let list = at.field(list);
            faults.forbidden(&list.index(index).field("volumeDevices"), "when `hostUsers` is false");
        }
    }
}
