//! What the level `baseline` forbids. Part of [`super`].

use k8s_openapi::api::core::v1::{Lifecycle, Probe, SELinuxOptions};

use super::{Names, Violation, bad_containers, has_own_users, named, plural, quoted, setters, use_of};
use crate::pod::{APPARMOR_ANNOTATION, PodRecord};

/// In the standard's order.
pub(super) const ALL: [fn(&PodRecord) -> Option<Violation>; 11] = [
    apparmor,
    capabilities,
    host_namespaces,
    host_paths,
    host_ports,
    hosts_of_probes,
    privileged,
    proc_mount_with_own_users,
    selinux,
    seccomp,
    sysctls,
];

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SYSCTLS: [&str; 14] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
];

const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Whether the kind is a profile of AppArmor or seccomp.
pub(super) fn is_profile(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

pub(super) fn apparmor(record: &PodRecord) -> Option<Violation> {
    let mut values = Names::new();
    let context = record.spec().security_context.as_ref();
    let pod = context.and_then(|context| context.app_armor_profile.as_ref()).map(|profile| profile.type_.as_str());
    let pod = pod.filter(|kind| !is_profile(kind));
    values.extend(pod);
    let containers = bad_containers(record, |container| {
        let profile = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
        let kind = profile.map(|profile| profile.type_.as_str()).filter(|kind| !is_profile(kind));
        values.extend(kind);
        kind.is_some()
    });
    let annotations = record.pod.metadata.annotations.iter().flatten().filter(|(key, value)| {
        let allowed = value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/");
        key.starts_with(APPARMOR_ANNOTATION) && !allowed
    });
    let annotations: Vec<String> = annotations.map(|(key, value)| format!("{key}={value:?}")).collect();
    let mut all: Vec<String> = setters(pod.is_some(), &containers).into_iter().collect();
    if !annotations.is_empty() {
        all.push(plural("annotation", annotations.len()));
    }
    let values: Vec<&str> = values.into_iter().chain(annotations.iter().map(String::as_str)).collect();
    let reason = plural("forbidden AppArmor profile", values.len());
    let detail = || format!("{} must not set AppArmor profile type to {}", all.join(" and "), quoted(values));
    (!all.is_empty()).then(|| Violation::new(reason, detail()))
}

pub(super) fn capabilities(record: &PodRecord) -> Option<Violation> {
    let (containers, added) = adding(record, &CAPABILITIES);
    (!containers.is_empty()).then(|| Violation::new("non-default capabilities", must_not_add(&containers, &added)))
}

/// The containers that add other capabilities than `allowed`, and those capabilities.
pub(super) fn adding<'a>(record: &'a PodRecord, allowed: &[&str]) -> (Vec<&'a str>, Names<'a>) {
    let mut forbidden = Names::new();
    let containers = bad_containers(record, |container| {
        let context = container.security_context.as_ref();
        let added = context.and_then(|context| context.capabilities.as_ref()?.add.as_ref()).into_iter().flatten();
        let others: Vec<&str> = added.map(String::as_str).filter(|capability| !allowed.contains(capability)).collect();
        forbidden.extend(&others);
        !others.is_empty()
    });
    (containers, forbidden)
}

pub(super) fn must_not_add(containers: &[&str], added: &Names<'_>) -> String {
    let containers = named("container", containers);
    format!("{containers} must not include {} in securityContext.capabilities.add", quoted(added.iter().copied()))
}

pub(super) fn host_namespaces(record: &PodRecord) -> Option<Violation> {
    let spec = record.spec();
    let all = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let shared = all.into_iter().filter(|(_, shared)| *shared == Some(true)).map(|(name, _)| format!("{name}=true"));
    let shared: Vec<String> = shared.collect();
    (!shared.is_empty()).then(|| Violation::new("host namespaces", shared.join(", ")))
}

fn host_paths(record: &PodRecord) -> Option<Violation> {
    let volumes = record.spec().volumes.iter().flatten().filter(|volume| volume.host_path.is_some());
    let names: Vec<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    (!names.is_empty()).then(|| Violation::new("hostPath volumes", named("volume", &names)))
}

pub(super) fn host_ports(record: &PodRecord) -> Option<Violation> {
    // Sorted as texts, as in the standard.
    let mut forbidden = std::collections::BTreeSet::new();
    let containers = bad_containers(record, |container| {
        let ports = container.ports.iter().flatten().filter_map(|port| port.host_port.filter(|port| *port != 0));
        let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
        let is_bad = !ports.is_empty();
        forbidden.extend(ports);
        is_bad
    });
    let ports: Vec<String> = forbidden.into_iter().collect();
    let detail = || {
        let (named, what) = (named("container", &containers), plural("hostPort", ports.len()));
        format!("{named} {} {what} {}", use_of(&containers), ports.join(", "))
    };
    (!containers.is_empty()).then(|| Violation::new("hostPort", detail()))
}

pub(super) fn hosts_of_probes(record: &PodRecord) -> Option<Violation> {
    let mut hosts = Names::new();
    let mut containers = bad_containers(record, |container| {
        let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
        let from_probes = probes.into_iter().flatten().flat_map(of_probe);
        let used: Vec<&str> = from_probes.chain(container.lifecycle.iter().flat_map(of_lifecycle)).collect();
        hosts.extend(&used);
        !used.is_empty()
    });
    containers.sort_unstable();
    let what = plural("probe or lifecycle host", hosts.len());
    let detail =
        || format!("{} {} {what} {}", named("container", &containers), use_of(&containers), quoted(hosts.clone()));
    (!containers.is_empty()).then(|| Violation::new("probe or lifecycle host", detail()))
}

fn of_probe(probe: &Probe) -> impl Iterator<Item = &str> {
    let http = probe.http_get.as_ref().and_then(|action| action.host.as_deref());
    let tcp = probe.tcp_socket.as_ref().and_then(|action| action.host.as_deref());
    http.into_iter().chain(tcp).filter(|host| !host.is_empty())
}

fn of_lifecycle(lifecycle: &Lifecycle) -> impl Iterator<Item = &str> {
    let handlers = [&lifecycle.post_start, &lifecycle.pre_stop].into_iter().flatten();
    handlers.flat_map(|handler| {
        let http = handler.http_get.as_ref().and_then(|action| action.host.as_deref());
        let tcp = handler.tcp_socket.as_ref().and_then(|action| action.host.as_deref());
        http.into_iter().chain(tcp).filter(|host| !host.is_empty())
    })
}

pub(super) fn privileged(record: &PodRecord) -> Option<Violation> {
    let containers = bad_containers(record, |container| {
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
    });
    let detail = || format!("{} must not set securityContext.privileged=true", named("container", &containers));
    (!containers.is_empty()).then(|| Violation::new("privileged", detail()))
}

fn proc_mount_with_own_users(record: &PodRecord) -> Option<Violation> {
    if has_own_users(record.spec()) { None } else { proc_mount(record) }
}

pub(super) fn proc_mount(record: &PodRecord) -> Option<Violation> {
    let mut kinds = Names::new();
    let containers = bad_containers(record, |container| {
        let kind = container.security_context.as_ref().and_then(|context| context.proc_mount.as_deref());
        let kind = kind.filter(|kind| *kind != "Default");
        kinds.extend(kind);
        kind.is_some()
    });
    let detail = || {
        let kinds = quoted(kinds.clone());
        format!("{} must not set securityContext.procMount to {kinds}", named("container", &containers))
    };
    (!containers.is_empty()).then(|| Violation::new("procMount", detail()))
}

pub(super) fn selinux(record: &PodRecord) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Names::new(), false, false);
    let mut are_bad = |options: &SELinuxOptions| {
        let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
        let (has_user, has_role) = (is_set(&options.user), is_set(&options.role));
        (user, role) = (user | has_user, role | has_role);
        let kind = options.type_.as_deref().unwrap_or_default();
        has_user || has_role || !SELINUX_TYPES.contains(&kind)
    };
    let spec = record.spec();
    let of_pod = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let pod = of_pod.is_some_and(&mut are_bad);
    let containers = bad_containers(record, |container| {
        let options = container.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
        options.is_some_and(&mut are_bad)
    });
    let of_containers =
        record.containers().filter_map(|container| container.security_context.as_ref()?.se_linux_options.as_ref());
    let all = of_pod.into_iter().chain(of_containers).filter_map(|options| options.type_.as_deref());
    types.extend(all.filter(|kind| !SELINUX_TYPES.contains(kind)));
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(named("type", &types.into_iter().collect::<Vec<_>>()));
    }
    data.extend(user.then(|| "user may not be set".to_owned()));
    data.extend(role.then(|| "role may not be set".to_owned()));
    let detail = |setters| format!("{setters} set forbidden securityContext.seLinuxOptions: {}", data.join("; "));
    setters(pod, &containers).map(|setters| Violation::new("seLinuxOptions", detail(setters)))
}

pub(super) fn seccomp(record: &PodRecord) -> Option<Violation> {
    let mut kinds = Names::new();
    let context = record.spec().security_context.as_ref();
    let pod = context.and_then(|context| context.seccomp_profile.as_ref()).map(|profile| profile.type_.as_str());
    let pod = pod.filter(|kind| !is_profile(kind));
    kinds.extend(pod);
    let containers = bad_containers(record, |container| {
        let profile = container.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
        let kind = profile.map(|profile| profile.type_.as_str()).filter(|kind| !is_profile(kind));
        kinds.extend(kind);
        kind.is_some()
    });
    let detail = |setters| format!("{setters} must not set securityContext.seccompProfile.type to {}", quoted(kinds));
    setters(pod.is_some(), &containers).map(|setters| Violation::new("seccompProfile", detail(setters)))
}

pub(super) fn sysctls(record: &PodRecord) -> Option<Violation> {
    let context = record.spec().security_context.as_ref();
    let all = context.and_then(|context| context.sysctls.as_ref()).into_iter().flatten();
    let names: Vec<&str> = all.map(|sysctl| sysctl.name.as_str()).filter(|name| !SYSCTLS.contains(name)).collect();
    (!names.is_empty()).then(|| Violation::new("forbidden sysctls", names.join(", ")))
}
