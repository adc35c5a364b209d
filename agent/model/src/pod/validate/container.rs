//! Validation of one container: name, image, ports, resize policy, and its other parts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::pod::validate::context::Pod;
use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::validate::{env, mount, resources, security};

/// Validates the fields common to all kinds of container.
pub(super) fn container(pod: &Pod<'_>, at: &At<'_>, container: &Container, faults: &mut Faults) {
    faults.required_dns_label(&at.field("name"), &container.name);
    faults.not_empty(&at.field("image"), text(&container.image));
    let policy = container.termination_message_policy.as_deref();
    faults.one_of(&at.field("terminationMessagePolicy"), policy, &["File", "FallbackToLogsOnError"]);
    ports(&at.field("ports"), container, faults);
    env::variables(&at.field("env"), container, faults);
    env::sources(&at.field("envFrom"), container, faults);
    mount::mounts(pod, &at.field("volumeMounts"), container, faults);
    mount::devices(pod, &at.field("volumeDevices"), container, faults);
    pull_policy(&at.field("imagePullPolicy"), container.image_pull_policy.as_deref(), faults);
    if let Some(required) = &container.resources {
        resources::of_container(&at.field("resources"), required, &pod.claims, faults);
    }
    resize_policies(&at.field("resizePolicy"), container, pod.spec, faults);
    security::container(pod.spec, &at.field("securityContext"), container, faults);
}

pub(super) fn pull_policy(at: &At<'_>, policy: Option<&str>, faults: &mut Faults) {
    faults.one_of(at, policy, &["Always", "IfNotPresent", "Never"]);
}

/// An image with leading or trailing whitespace is a mistake.
pub(super) fn image_is_trimmed(at: &At<'_>, container: &Container, faults: &mut Faults) {
    let image = text(&container.image);
    if image.trim() != image {
        faults.invalid(&at.field("image"), image, "must not have leading or trailing whitespace");
    }
}

fn ports(at: &At<'_>, container: &Container, faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, port) in items(&container.ports) {
        let at = at.index(index);
        let name = text(&port.name);
        if !name.is_empty() {
            faults.port_name(&at.field("name"), name);
            if !names.insert(name) {
                faults.duplicate(&at.field("name"), name);
            }
        }
        match port.container_port {
            0 => faults.required(&at.field("containerPort"), ""),
            number => faults.port(&at.field("containerPort"), number),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            faults.port(&at.field("hostPort"), number);
        }
        faults.one_of(&at.field("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
    }
}

fn resize_policies(at: &At<'_>, container: &Container, spec: &PodSpec, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, policy) in items(&container.resize_policy) {
        if !seen.insert(&policy.resource_name) {
            faults.duplicate(&at.index(index), &policy.resource_name);
        }
        faults.one_of(at, Some(&policy.resource_name), &["cpu", "memory"]);
        faults.one_of(at, Some(&policy.restart_policy), &["NotRequired", "RestartContainer"]);
        if text(&spec.restart_policy) == "Never" && policy.restart_policy != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            faults.invalid(at, &policy.restart_policy, detail);
        }
    }
}
