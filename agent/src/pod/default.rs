//! Kubernetes' defaults of a Pod (kubelet-semantics D3), as far as a node acts on them.

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    Volume,
};

/// Fills in what the author left out.
pub(super) fn default(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        spec_defaults(spec);
    }
}

fn set<T>(field: &mut Option<T>, value: T) {
    field.get_or_insert(value);
}

fn text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn spec_defaults(spec: &mut PodSpec) {
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    set(&mut spec.termination_grace_period_seconds, 30);
    set(&mut spec.enable_service_links, true);
    set(&mut spec.security_context, PodSecurityContext::default());
    let host_network = spec.host_network.unwrap_or(false);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container_defaults(container, host_network);
    }
    spec.volumes.iter_mut().flatten().for_each(volume_defaults);
}

fn container_defaults(container: &mut Container, host_network: bool) {
    let always = container.image.as_deref().is_some_and(is_latest);
    text(&mut container.image_pull_policy, if always { "Always" } else { "IfNotPresent" });
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    container.resources.iter_mut().for_each(requests_from_limits);
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    for variable in container.env.iter_mut().flatten() {
        let source = variable.value_from.as_mut().and_then(|source| source.field_ref.as_mut());
        if let Some(ObjectFieldSelector { api_version, .. }) = source {
            text(api_version, "v1");
        }
    }
}

/// What is limited and not requested is requested in full.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Whether an image's tag is `latest`, said or unsaid; a digest is never.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume_defaults(volume: &mut Volume) {
    if let Some(host_path) = &mut volume.host_path {
        set(&mut host_path.type_, String::new());
    }
    let Volume { name, empty_dir, .. } = &*volume;
    // A volume without a source is an empty directory.
    if empty_dir.is_none() && *volume == (Volume { name: name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaulted(spec: serde_json::Value) -> PodSpec {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        default(&mut pod);
        pod.spec.unwrap()
    }

    #[test]
    fn the_pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("localhost:5000/busybox", "Always"),
            ("localhost:5000/busybox:1", "IfNotPresent"),
            ("busybox@sha256:00", "IfNotPresent"),
        ] {
            let spec = defaulted(json!({"containers": [{"name": "a", "image": image}]}));
            assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some(policy), "{image}");
        }
    }

    #[test]
    fn what_the_author_left_out_is_filled_in_and_what_he_wrote_is_kept() {
        let spec = defaulted(json!({
            "restartPolicy": "Never",
            "hostNetwork": true,
            "containers": [{
                "name": "a", "image": "a:1", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
            }],
            "volumes": [{"name": "v"}, {"name": "h", "hostPath": {"path": "/x"}}]
        }));
        assert_eq!((spec.restart_policy.as_deref(), spec.dns_policy.as_deref()), (Some("Never"), Some("ClusterFirst")));
        assert_eq!(spec.termination_grace_period_seconds, Some(30));
        let container = &spec.containers[0];
        let port = &container.ports.as_ref().unwrap()[0];
        assert_eq!((port.protocol.as_deref(), port.host_port), (Some("TCP"), Some(80)));
        let requests = container.resources.as_ref().unwrap().requests.as_ref().unwrap();
        assert_eq!((requests["cpu"].0.as_str(), requests["memory"].0.as_str()), ("500m", "1Gi"));
        let volumes = spec.volumes.unwrap();
        assert!(volumes[0].empty_dir.is_some());
        assert_eq!(volumes[1].host_path.as_ref().unwrap().type_.as_deref(), Some(""));
    }
}
