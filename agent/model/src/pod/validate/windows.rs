//! Validation of fields specific to Windows or Linux, by `spec.os.name`.

use k8s_openapi::api::core::v1::{PodSpec, WindowsSecurityContextOptions};

use crate::pod::name::is_dns_subdomain;
use crate::pod::validate::context::each_container;
use crate::pod::validate::field::{At, Faults};

const MAX_CREDENTIAL_SPEC: usize = 64 << 10;
const MAX_USER: usize = 104;
const MAX_DOMAIN: usize = 256;
const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";
const NOT_ON_LINUX: &str = "windows options cannot be set for a linux pod";

/// Validates `spec.os` and the fields it excludes.
pub(super) fn os(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let Some(os) = &spec.os else { return };
    let at_os = at.field("os");
    match os.name.as_str() {
        "" => faults.required(&at_os.field("name"), ""),
        "linux" => linux(spec, at, faults),
        "windows" => windows(spec, at, faults),
        name => faults.unsupported(&at_os, name, &["linux", "windows"]),
    }
}

fn linux(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let context = at.field("securityContext");
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        faults.forbidden(&context.field("windowsOptions"), NOT_ON_LINUX);
    }
    for (list, index, container) in each_container(spec) {
        if container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
            let list = at.field(list);
            let item = list.index(index);
            faults.forbidden(&item.field("securityContext").field("windowsOptions"), NOT_ON_LINUX);
        }
    }
}

fn windows(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let context = spec.security_context.clone().unwrap_or_default();
    forbid(
        &at.field("securityContext"),
        faults,
        &[
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("fsGroup", context.fs_group.is_some()),
            ("fsGroupChangePolicy", context.fs_group_change_policy.is_some()),
            ("sysctls", context.sysctls.is_some_and(|sysctls| !sysctls.is_empty())),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
            ("supplementalGroups", context.supplemental_groups.is_some()),
            ("supplementalGroupsPolicy", context.supplemental_groups_policy.is_some()),
            ("seLinuxChangePolicy", context.se_linux_change_policy.is_some()),
        ],
    );
    forbid(
        at,
        faults,
        &[
            ("hostUsers", spec.host_users.is_some()),
            ("hostPID", spec.host_pid == Some(true)),
            ("hostIPC", spec.host_ipc == Some(true)),
            ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ],
    );
    for (list, index, container) in each_container(spec) {
        let Some(context) = &container.security_context else { continue };
        let list = at.field(list);
        let item = list.index(index);
        forbid(
            &item.field("securityContext"),
            faults,
            &[
                ("appArmorProfile", context.app_armor_profile.is_some()),
                ("seLinuxOptions", context.se_linux_options.is_some()),
                ("seccompProfile", context.seccomp_profile.is_some()),
                ("capabilities", context.capabilities.is_some()),
                ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
                ("privileged", context.privileged.is_some()),
                ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
                ("procMount", context.proc_mount.is_some()),
                ("runAsUser", context.run_as_user.is_some()),
                ("runAsGroup", context.run_as_group.is_some()),
            ],
        );
    }
}

fn forbid(at: &At<'_>, faults: &mut Faults, fields: &[(&str, bool)]) {
    fields.iter().filter(|(_, set)| *set).for_each(|(field, _)| faults.forbidden(&at.field(field), NOT_ON_WINDOWS));
}

/// Validates Windows options of a pod or container.
pub(super) fn options(at: &At<'_>, options: Option<&WindowsSecurityContextOptions>, faults: &mut Faults) {
    let Some(options) = options else { return };
    if let Some(name) = options.gmsa_credential_spec_name.as_deref() {
        faults.dns_subdomain(&at.field("gmsaCredentialSpecName"), name);
    }
    match options.gmsa_credential_spec.as_deref() {
        Some("") => {
            faults.invalid(&at.field("gmsaCredentialSpec"), "", "gmsaCredentialSpec cannot be an empty string");
        }
        Some(spec) if spec.len() > MAX_CREDENTIAL_SPEC => {
            faults.invalid(&at.field("gmsaCredentialSpec"), spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
        _ => {}
    }
    if let Some(name) = options.run_as_user_name.as_deref() {
        let details: Vec<&str> = user_name_faults(name);
        details.iter().for_each(|detail| faults.invalid(&at.field("runAsUserName"), name, detail));
    }
}

/// The faults of `DOMAIN\user` or `user`.
fn user_name_faults(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.chars().any(char::is_control) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    if user.contains('\\') {
        return vec!["runAsUserName cannot contain more than one backslash"];
    }
    let mut faults = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= MAX_DOMAIN) {
        faults.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_dns_subdomain(&domain.to_lowercase())) {
        faults.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        faults.push("runAsUserName's User cannot be empty");
    } else if user.len() > MAX_USER {
        faults.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.bytes().all(|byte| byte == b'.' || byte == b' ') {
        faults.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        faults.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    faults
}

fn is_net_bios(domain: &str) -> bool {
    let plain = |c: char| !matches!(c, '\\' | '/' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    (1..=15).contains(&domain.chars().count()) && domain.chars().all(plain) && !domain.starts_with('.')
}

/// Either all containers are host processes, which then need `hostNetwork`, or none is.
pub(super) fn host_process(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let is_host_process =
        |options: Option<&WindowsSecurityContextOptions>| options.and_then(|options| options.host_process);
    let pod = is_host_process(spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref()));
    let (mut count, mut of_host) = (0, 0);
    for (list, index, container) in each_container(spec) {
        count += 1;
        let of_container =
            is_host_process(container.security_context.as_ref().and_then(|context| context.windows_options.as_ref()));
        if let (Some(pod), Some(of_container)) = (pod, of_container)
            && pod != of_container
        {
            let list = at.field(list);
            let item = list.index(index);
            let context = item.field("securityContext");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            faults.invalid(&context.field("windowsOptions").field("hostProcess"), of_container, &detail);
        }
        of_host += usize::from(of_container.or(pod) == Some(true));
    }
    if of_host == 0 {
        return;
    }
    if of_host != count {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        faults.invalid(at, "", detail);
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        faults.invalid(&at.field("hostNetwork"), false, detail);
    }
}
