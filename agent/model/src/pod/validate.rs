//! Kubernetes' validation of a Pod, all of it, including fields that limpet does not act on. Every fault uses
//! Kubernetes' field names and messages, with a remedy where one helps. It runs after defaulting and naming, as in
//! kubelet.

mod affinity;
mod container;
mod containers;
mod context;
mod dns;
mod env;
mod field;
mod metadata;
mod mount;
mod name;
mod probe;
mod resources;
mod restart;
mod scheduling;
mod security;
mod selector;
mod volume;
mod windows;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PodSpec, Volume};

use crate::pod::draft::Draft;
use crate::pod::{Fault, FaultList, PodRecord};
use context::{Pod, each_container};
use field::{At, Faults, items, text};

/// All faults of a pod.
pub(crate) fn validate(draft: &Draft) -> FaultList {
    let mut faults = Faults::default();
    metadata::metadata(draft, &mut faults);
    spec(draft.spec(), &draft.name, &mut faults);
    faults.finish()
}

/// The faults of the spec of a PersistentVolumeClaim at the path `root`.
pub(crate) fn claim_spec(root: &str, spec: &PersistentVolumeClaimSpec) -> FaultList {
    let mut faults = Faults::default();
    volume::claim_spec(&At::Root(root), spec, &mut faults);
    faults.finish()
}

/// The faults of the pod's ephemeral container at that index, as if it were added to the running pod.
pub(crate) fn added(record: &PodRecord, index: usize) -> Vec<Fault> {
    let (spec, root) = (record.spec(), At::Root("spec"));
    // Other faults of the pod were accepted before.
    let mut others = Faults::default();
    let volumes = volume::volumes(spec, record.key.name(), &root.field("volumes"), &mut others);
    let claims = resources::claims(spec, &root.field("resourceClaims"), &mut others);
    let list = root.field("ephemeralContainers");
    let mut faults = Faults::default();
    containers::ephemerals(&Pod { spec, volumes, claims }, &list, &mut faults);
    let prefix = list.index(index).to_string();
    let is_own =
        |fault: &Fault| fault.path.strip_prefix(&prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    faults.finish().finish().into_iter().filter(is_own).collect()
}

fn spec(spec: &PodSpec, name: &str, faults: &mut Faults) {
    let at = &At::Root("spec");
    let volumes = volume::volumes(spec, name, &at.field("volumes"), faults);
    let claims = resources::claims(spec, &at.field("resourceClaims"), faults);
    containers::containers(&Pod { spec, volumes, claims }, at, faults);
    resources::of_pod(spec, &at.field("resources"), faults);
    if let Some(overhead) = &spec.overhead {
        resources::overhead(&at.field("overhead"), overhead, faults);
    }
    life(spec, at, faults);
    names(spec, at, faults);
    host_network(spec, at, faults);
    dns::hostname(spec, at, faults);
    dns::host_aliases(spec, at, faults);
    dns::config(spec, at, faults);
    security::pod(spec, &at.field("securityContext"), faults);
    security::namespaces(spec, at, faults);
    windows::os(spec, at, faults);
    windows::host_process(spec, at, faults);
    scheduling::scheduling(spec, at, faults);
    across_volumes(spec, at, faults);
    if spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        faults.cannot_be_created(&at.field("ephemeralContainers"), "add them to the running pod: limpet debug");
    }
}

fn life(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let policies = ["Always", "OnFailure", "Never"];
    faults.one_of(&at.field("restartPolicy"), spec.restart_policy.as_deref(), &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    faults.one_of(&at.field("dnsPolicy"), spec.dns_policy.as_deref(), &policies);
    if let Some(seconds) = spec.active_deadline_seconds {
        faults.in_range(&at.field("activeDeadlineSeconds"), seconds, 1, i64::from(i32::MAX));
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or(0);
    faults.not_negative(&at.field("terminationGracePeriodSeconds"), grace);
}

/// The node's name is not validated: the node itself set it.
fn names(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let account = text(&spec.service_account_name);
    if !account.is_empty() {
        faults.dns_subdomain(&at.field("serviceAccountName"), account);
    }
}

/// With `hostNetwork` a port of the pod is a port of the host.
fn host_network(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    if spec.host_network != Some(true) {
        return;
    }
    let list = at.field("containers");
    for (index, container) in spec.containers.iter().enumerate() {
        for (number, port) in items(&container.ports) {
            let host = port.host_port.unwrap_or(0);
            if host != port.container_port {
                let item = list.index(index);
                let ports = item.field("ports");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                faults.invalid(&ports.index(number).field("hostPort"), host, detail);
            }
        }
    }
}

/// Rules between a volume and other parts of the pod.
fn across_volumes(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let no_account = text(&spec.service_account_name).is_empty();
    let list = at.field("volumes");
    for (index, volume) in items(&spec.volumes).filter(|_| no_account) {
        let sources = volume.projected.iter().flat_map(|projected| items(&projected.sources));
        for (number, _) in sources.filter(|(_, source)| source.service_account_token.is_some()) {
            let item = list.index(index);
            let sources = item.field("projected");
            let sources = sources.field("sources");
            let detail = "must not be specified when serviceAccountName is not set";
            faults.forbidden(&sources.index(number).field("serviceAccountToken"), detail);
        }
    }
    let volumes: BTreeMap<&str, &Volume> =
        spec.volumes.iter().flatten().map(|container| (container.name.as_str(), container)).collect();
    for (list, index, container) in each_container(spec) {
        let list = at.field(list);
        for (number, variable) in items(&container.env) {
            let file = variable.value_from.as_ref().and_then(|source| source.file_key_ref.as_ref());
            let Some(name) = file.map(|file| file.volume_name.as_str()) else { continue };
            let item = list.index(index);
            let env = item.field("env");
            let entry = env.index(number);
            let source = entry.field("valueFrom");
            let key = source.field("fileKeyRef");
            let at = key.field("volumeName");
            match volumes.get(name) {
                None => faults.not_found(&at, name, ""),
                Some(volume) if volume.empty_dir.is_none() => {
                    faults.invalid(&at, name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod tests;
