//! Pod records for the tests of all crates.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::pod::compute_resources::pod_limits;
use crate::pod::qos::qos_class;
use crate::pod::{Fingerprint, PodKey, PodRecord, PodUid, ephemeral};
use crate::source::SourceKind;

/// A pod from a manifest in JSON, with fingerprints that do not depend on it.
///
/// # Panics
/// When the manifest is not a Pod with a name.
pub fn record(manifest: Value) -> Arc<PodRecord> {
    let pod: Pod = serde_json::from_value(manifest.clone()).unwrap();
    let spec = pod.spec.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Arc::new(PodRecord {
        key: PodKey::new(namespace, pod.metadata.name.clone().unwrap()),
        uid: PodUid::new(pod.metadata.uid.clone().unwrap_or_else(|| "0af3".to_owned())),
        fingerprint: Fingerprint([7; 16]),
        immutable_fingerprint: Fingerprint([8; 16]),
        source: SourceKind::File,
        origin: "web.yaml".into(),
        manifest: serde_json::to_vec(&manifest).unwrap().into(),
        ephemeral: ephemeral::containers(&pod),
        qos_class: qos_class(&spec),
        cgroup_limits: pod_limits(&spec),
        pod,
    })
}

/// A pod with this `spec`, from a file.
///
/// # Panics
/// When the spec is not that of a Pod.
pub fn record_of_spec(spec: Value) -> PodRecord {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-node", "namespace": "shop", "uid": "0123456789abcdef0123456789abcdef",
                     "labels": {"app": "web"}, "annotations": {"team/a": "b c"}},
        "spec": spec,
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let spec = pod.spec.clone().unwrap_or_default();
    PodRecord {
        key: PodKey::new("shop", "web-node"),
        uid: PodUid::new("0123456789abcdef0123456789abcdef"),
        fingerprint: Fingerprint([0; 16]),
        immutable_fingerprint: Fingerprint([0; 16]),
        source: SourceKind::File,
        origin: "web.yaml".into(),
        manifest: b"{}".as_slice().into(),
        ephemeral: ephemeral::containers(&pod),
        qos_class: qos_class(&spec),
        cgroup_limits: pod_limits(&spec),
        pod,
    }
}
