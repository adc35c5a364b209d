//! What the level `restricted` forbids. Part of [`super`].

use k8s_openapi::api::core::v1::Volume;

use super::baseline::{
    adding, apparmor, host_namespaces, host_ports, hosts_of_probes, is_profile, must_not_add, privileged, proc_mount,
    seccomp, selinux, sysctls,
};
use super::{Names, Violation, bad_containers, has_own_users, named, plural, quoted, setters, use_of};
use crate::pod::PodRecord;

/// In the standard's order: what `baseline` forbids, then what only this level does.
pub(super) const ALL: [fn(&PodRecord) -> Option<Violation>; 14] = [
    apparmor,
    host_namespaces,
    host_ports,
    hosts_of_probes,
    privileged,
    selinux,
    sysctls,
    privilege_escalation,
    capabilities,
    proc_mount,
    volumes,
    non_root,
    user,
    seccomp_profile,
];

/// The volumes that a pod may have, as the API names them.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn privilege_escalation(record: &PodRecord) -> Option<Violation> {
    let containers = bad_containers(record, |container| {
        let context = container.security_context.as_ref();
        context.is_none_or(|context| context.allow_privilege_escalation != Some(false))
    });
    let named = || named("container", &containers);
    let detail = || format!("{} must set securityContext.allowPrivilegeEscalation=false", named());
    (!containers.is_empty()).then(|| Violation::new("allowPrivilegeEscalation != false", detail()))
}

fn capabilities(record: &PodRecord) -> Option<Violation> {
    let keeping = bad_containers(record, |container| {
        let context = container.security_context.as_ref();
        let dropped = context.and_then(|context| context.capabilities.as_ref()?.drop.as_ref());
        !dropped.into_iter().flatten().any(|capability| capability == "ALL")
    });
    let (containers, added) = adding(record, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named("container", &keeping)));
    }
    if !containers.is_empty() {
        details.push(must_not_add(&containers, &added));
    }
    (!details.is_empty()).then(|| Violation::new("unrestricted capabilities", details.join("; ")))
}

fn volumes(record: &PodRecord) -> Option<Violation> {
    let kinds: Vec<(&str, String)> = record
        .spec()
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| Some((volume.name.as_str(), kind(volume)?)))
        .collect();
    let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
    let kinds: Names<'_> = kinds.iter().map(|(_, kind)| kind.as_str()).collect();
    let what = plural("restricted volume type", kinds.len());
    let detail = || format!("{} {} {what} {}", named("volume", &names), use_of(&names), quoted(kinds));
    (!names.is_empty()).then(|| Violation::new("restricted volume types", detail()))
}

/// The kind of a volume that is not allowed.
fn kind(volume: &Volume) -> Option<String> {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let kinds = || fields.as_object().into_iter().flat_map(serde_json::Map::keys).filter(|name| *name != "name");
    let is_allowed = kinds().any(|kind| VOLUMES.contains(&kind.as_str()));
    (!is_allowed).then(|| kinds().next().map_or_else(|| "unknown".to_owned(), String::clone))
}

fn non_root(record: &PodRecord) -> Option<Violation> {
    if has_own_users(record.spec()) {
        return None;
    }
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = record.spec().security_context.as_ref().and_then(|context| context.run_as_non_root);
    let bad_for = |is_bad: fn(Option<bool>) -> bool| {
        bad_containers(record, move |container| {
            is_bad(container.security_context.as_ref().and_then(|context| context.run_as_non_root))
        })
    };
    if let Some(setters) = setters(of_pod == Some(false), &bad_for(|set| set == Some(false))) {
        return Some(Violation::new(REASON, format!("{setters} must not set securityContext.runAsNonRoot=false")));
    }
    let silent = if of_pod == Some(true) { Vec::new() } else { bad_for(|set| set.is_none()) };
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", named("container", &silent));
    (!silent.is_empty()).then(|| Violation::new(REASON, detail()))
}

fn user(record: &PodRecord) -> Option<Violation> {
    if has_own_users(record.spec()) {
        return None;
    }
    let pod = record.spec().security_context.as_ref().is_some_and(|context| context.run_as_user == Some(0));
    let containers = bad_containers(record, |container| {
        container.security_context.as_ref().is_some_and(|context| context.run_as_user == Some(0))
    });
    let detail = |setters| format!("{setters} must not set runAsUser=0");
    setters(pod, &containers).map(|setters| Violation::new("runAsUser=0", detail(setters)))
}

fn seccomp_profile(record: &PodRecord) -> Option<Violation> {
    if let Some(violation) = seccomp(record) {
        return Some(violation);
    }
    let context = record.spec().security_context.as_ref();
    let of_pod = context.and_then(|context| context.seccomp_profile.as_ref());
    if of_pod.is_some_and(|profile| is_profile(&profile.type_)) {
        return None;
    }
    let silent = bad_containers(record, |container| {
        container.security_context.as_ref().is_none_or(|context| context.seccomp_profile.is_none())
    });
    let detail = || {
        let named = named("container", &silent);
        format!("pod or {named} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"")
    };
    (!silent.is_empty()).then(|| Violation::new("seccompProfile", detail()))
}
