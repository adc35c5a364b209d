//! Defaults of containers, of their probes and hooks.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, ContainerPort, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
    ObjectFieldSelector, PodSpec, Probe, ResourceRequirements, SecurityContext,
};

use crate::pod::APPARMOR_ANNOTATION;
use crate::pod::default::{pull_policy, resources, set, text};

/// Sets the defaults of a container or init container.
pub(super) fn container(container: &mut Container, host_network: bool) {
    text(&mut container.image_pull_policy, pull_policy(container.image.as_deref()));
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    resources::requests_from_limits(container.resources.get_or_insert_default());
    ports(container.ports.iter_mut().flatten(), host_network);
    env(container.env.iter_mut().flatten());
    [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
        .into_iter()
        .flatten()
        .for_each(probe);
    container.lifecycle.iter_mut().for_each(lifecycle);
}

/// Sets the defaults of an ephemeral container, except resources and host ports.
pub(super) fn ephemeral(container: &mut EphemeralContainer) {
    text(&mut container.image_pull_policy, pull_policy(container.image.as_deref()));
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    set(&mut container.resources, ResourceRequirements::default());
    ports(container.ports.iter_mut().flatten(), false);
    env(container.env.iter_mut().flatten());
    [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
        .into_iter()
        .flatten()
        .for_each(probe);
    container.lifecycle.iter_mut().for_each(lifecycle);
}

fn ports<'a>(ports: impl Iterator<Item = &'a mut ContainerPort>, host_network: bool) {
    for port in ports {
        text(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
}

fn env<'a>(variables: impl Iterator<Item = &'a mut EnvVar>) {
    for source in variables.filter_map(|variable| variable.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(field);
        source.file_key_ref.iter_mut().for_each(|file| set(&mut file.optional, false));
    }
}

/// Sets the default API version of a field selector.
pub(super) fn field(selector: &mut ObjectFieldSelector) {
    text(&mut selector.api_version, "v1");
}

fn probe(probe: &mut Probe) {
    for (field, value) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(value);
        }
    }
    probe.http_get.iter_mut().for_each(http_get);
    probe.grpc.iter_mut().for_each(|grpc| set(&mut grpc.service, String::new()));
}

fn lifecycle(hooks: &mut Lifecycle) {
    for hook in [&mut hooks.post_start, &mut hooks.pre_stop].into_iter().flatten() {
        hook.http_get.iter_mut().for_each(http_get);
    }
}

fn http_get(get: &mut HTTPGetAction) {
    text(&mut get.path, "/");
    text(&mut get.scheme, "HTTP");
}

/// AppArmor profiles used to be annotations. Sets the field from the annotation if it is absent.
pub(super) fn apparmor(spec: &mut PodSpec, annotations: &BTreeMap<String, String>) {
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return;
    }
    let of_pod = spec.security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    let inits = spec.init_containers.iter_mut().flatten();
    let containers =
        inits.chain(&mut spec.containers).map(|container| (&container.name, &mut container.security_context));
    let ephemeral = spec
        .ephemeral_containers
        .iter_mut()
        .flatten()
        .map(|container| (&container.name, &mut container.security_context));
    for (name, context) in containers.chain(ephemeral) {
        let value = annotations.get(&format!("{APPARMOR_ANNOTATION}{name}"));
        let profile = value.and_then(|value| apparmor_profile(value));
        let has_field = context.as_ref().is_some_and(|context| context.app_armor_profile.is_some());
        if !has_field && profile.is_some() && profile != of_pod {
            context.get_or_insert_with(SecurityContext::default).app_armor_profile = profile;
        }
    }
}

fn apparmor_profile(value: &str) -> Option<AppArmorProfile> {
    let profile = |type_: &str, name: Option<&str>| {
        Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile: name.map(str::to_owned) })
    };
    match value {
        "unconfined" => profile("Unconfined", None),
        "runtime/default" => profile("RuntimeDefault", None),
        value => value
            .strip_prefix("localhost/")
            .filter(|name| !name.trim().is_empty())
            .and_then(|name| profile("Localhost", Some(name))),
    }
}
