//! Kubernetes' defaults of a Pod, all of them, including those of fields that limpet does not act on.

mod container;
mod resources;
mod volume;

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, PodSecurityContext, PodSpec};

use crate::image_name;

/// Sets the defaults of absent fields.
pub(crate) fn default(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    spec_defaults(spec);
    if let Some(annotations) = &pod.metadata.annotations {
        container::apparmor(spec, annotations);
    }
}

/// Sets the defaults of an ephemeral container.
pub(super) fn ephemeral(container: &mut EphemeralContainer) {
    container::ephemeral(container);
}

fn set<T>(field: &mut Option<T>, value: T) {
    field.get_or_insert(value);
}

/// Sets an absent or empty text to `value`.
fn text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn spec_defaults(spec: &mut PodSpec) {
    // The service account has an old and a new field; the new one takes precedence.
    let account = [&spec.service_account_name, &spec.service_account];
    let account = account.into_iter().flatten().find(|name| !name.is_empty()).cloned();
    spec.service_account_name.clone_from(&account);
    spec.service_account = account;
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    // A negative value used to be allowed, and means one second.
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    spec.termination_grace_period_seconds = Some(if grace < 0 { 1 } else { grace });
    set(&mut spec.enable_service_links, true);
    set(&mut spec.security_context, PodSecurityContext::default());
    let host_network = spec.host_network.unwrap_or(false);
    for each in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container::container(each, host_network);
    }
    spec.ephemeral_containers.iter_mut().flatten().for_each(ephemeral);
    spec.volumes.iter_mut().flatten().for_each(volume::volume);
    resources::of_pod(spec);
}

/// `Always` if the image's tag is `latest`, explicitly or by default; a digest alone has no tag.
fn pull_policy(image: Option<&str>) -> &'static str {
    match image.and_then(image_name::tag) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests;
