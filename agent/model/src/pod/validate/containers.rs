//! Validation of the lists of containers: rules within one list, and between the lists.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use crate::pod::container_form::as_container;
use crate::pod::validate::context::Pod;
use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::validate::{container, probe, restart};

/// Maximum number of containers of one pod; Kubernetes has no limit, a manifest file does.
const MAX_CONTAINERS: usize = 1_000;
const NOT_A_SIDECAR: &str = "may not be set for init containers without restartPolicy=Always";
const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// Whether an init container keeps running together with the others.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Validates every container.
pub(super) fn containers(pod: &Pod<'_>, at: &At<'_>, faults: &mut Faults) {
    let spec = pod.spec;
    if spec.containers.is_empty() {
        faults.required(&at.field("containers"), "a Pod needs at least one container");
    }
    let count = each_count(spec);
    if count > MAX_CONTAINERS {
        return faults.too_many(&at.field("containers"), count, MAX_CONTAINERS);
    }
    mains(pod, &at.field("containers"), faults);
    inits(pod, &at.field("initContainers"), faults);
    ephemerals(pod, &at.field("ephemeralContainers"), faults);
}

fn each_count(spec: &PodSpec) -> usize {
    let others = [spec.init_containers.as_ref().map(Vec::len), spec.ephemeral_containers.as_ref().map(Vec::len)];
    spec.containers.len() + others.into_iter().flatten().sum::<usize>()
}

fn mains(pod: &Pod<'_>, at: &At<'_>, faults: &mut Faults) {
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (index, container) in pod.spec.containers.iter().enumerate() {
        let at = at.index(index);
        container::container(pod, &at, container, faults);
        container::image_is_trimmed(&at, container, faults);
        if !names.insert(container.name.as_str()) && !container.name.is_empty() {
            faults.duplicate(&at.field("name"), &container.name);
        }
        probe::lifecycle_and_probes(pod, &at, container, faults);
        restart::policy(&at, container, faults);
        host_ports(&at, container, &mut ports, faults);
    }
}

fn inits(pod: &Pod<'_>, at: &At<'_>, faults: &mut Faults) {
    let mut names: BTreeSet<&str> = pod.spec.containers.iter().map(|container| container.name.as_str()).collect();
    for (index, container) in items(&pod.spec.init_containers) {
        let at = at.index(index);
        container::container(pod, &at, container, faults);
        container::image_is_trimmed(&at, container, faults);
        restart::policy(&at, container, faults);
        if !names.insert(&container.name) && !container.name.is_empty() {
            faults.duplicate(&at.field("name"), &container.name);
        }
        host_ports(&at, container, &mut BTreeSet::new(), faults);
        if is_sidecar(container) {
            probe::lifecycle_and_probes(pod, &at, container, faults);
        } else {
            not_of_a_sidecar(&at, container, faults);
        }
    }
}

fn not_of_a_sidecar(at: &At<'_>, container: &Container, faults: &mut Faults) {
    let fields = [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ];
    fields.iter().filter(|(_, set)| *set).for_each(|(field, _)| faults.forbidden(&at.field(field), NOT_A_SIDECAR));
    for (index, policy) in items(&container.resize_policy) {
        if policy.restart_policy == "RestartContainer" {
            let list = at.field("resizePolicy");
            let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            faults.invalid(&list.index(index).field("restartPolicy"), &policy.restart_policy, detail);
        }
    }
}

/// A host port must be unique for each protocol and address.
fn host_ports(at: &At<'_>, container: &Container, seen: &mut BTreeSet<String>, faults: &mut Faults) {
    for (index, port) in items(&container.ports) {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        let key = format!("{}/{}/{number}", text(&port.protocol), text(&port.host_ip));
        if seen.contains(&key) {
            let list = at.field("ports");
            faults.duplicate(&list.index(index).field("hostPort"), &key);
        }
        seen.insert(key);
    }
}

/// Validates the ephemeral containers.
pub(super) fn ephemerals(pod: &Pod<'_>, at: &At<'_>, faults: &mut Faults) {
    let inits = pod.spec.init_containers.iter().flatten();
    let others: BTreeSet<&str> =
        pod.spec.containers.iter().chain(inits).map(|container| container.name.as_str()).collect();
    let mut names = others.clone();
    for (index, container) in items(&pod.spec.ephemeral_containers) {
        let at = at.index(index);
        let as_container = as_container(container);
        container::container(pod, &at, &as_container, faults);
        container::image_is_trimmed(&at, &as_container, faults);
        if !names.insert(&container.name) {
            faults.duplicate(&at.field("name"), &container.name);
        }
        let target = text(&container.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            faults.not_found(&at.field("targetContainerName"), target, "");
        }
        not_of_an_ephemeral(&at, container, faults);
    }
}

fn not_of_an_ephemeral(at: &At<'_>, container: &EphemeralContainer, faults: &mut Faults) {
    let resources = container.resources.as_ref();
    let fields = [
        ("ports", container.ports.is_some()),
        ("resources", resources.is_some_and(|resources| *resources != Default::default())),
        ("resizePolicy", container.resize_policy.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ];
    fields.iter().filter(|(_, set)| *set).for_each(|(field, _)| faults.forbidden(&at.field(field), NOT_EPHEMERAL));
    for (index, mount) in items(&container.volume_mounts) {
        let list = at.field("volumeMounts");
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if !text(value).is_empty() {
                faults.forbidden(&list.index(index).field(field), NOT_EPHEMERAL);
            }
        }
    }
}
