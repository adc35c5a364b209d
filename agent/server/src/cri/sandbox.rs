//! A pod in CRI's terms. limpet has no pause container: the sandbox is the pod itself, with an id derived from its
//! UID.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::json;

use super::container::Run;
use super::identity::{nanoseconds, pod_labels, sandbox_id};
use limpet_core::status::observed::ObservedPod;
use limpet_model::container::pod_id;
use limpet_model::pod::{PodRecord, is_terminal_phase};
use limpet_node_api::runtime as cri;

/// The pod as an item of a list.
pub(super) fn item(pod: &ObservedPod) -> cri::PodSandbox {
    cri::PodSandbox {
        id: sandbox_id(pod),
        metadata: Some(metadata(&pod.record)),
        state: state(pod) as i32,
        created_at: created_at(pod),
        labels: labels(&pod.record),
        annotations: annotations(&pod.record),
        runtime_handler: runtime_handler(&pod.record),
    }
}

/// The pod's full status.
pub(super) fn status(pod: &ObservedPod) -> cri::PodSandboxStatus {
    let ips = pod.status.pod_ips.iter().flatten().map(|ip| cri::PodIp { ip: ip.ip.clone() });
    let network = cri::PodSandboxNetworkStatus {
        // As with containerd, a pod in the host network has no address here.
        ip: pod.status.pod_ip.clone().filter(|_| !pod.record.host_network()).unwrap_or_default(),
        additional_ips: ips.skip(1).filter(|_| !pod.record.host_network()).collect(),
    };
    let options = namespaces(pod.record.spec());
    cri::PodSandboxStatus {
        id: sandbox_id(pod),
        metadata: Some(metadata(&pod.record)),
        state: state(pod) as i32,
        created_at: created_at(pod),
        network: Some(network),
        linux: Some(cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options: Some(options) }) }),
        labels: labels(&pod.record),
        annotations: annotations(&pod.record),
        runtime_handler: runtime_handler(&pod.record),
    }
}

/// The additional details of a verbose status, which CRI has no field for.
pub(super) fn info(pod: &ObservedPod) -> HashMap<String, String> {
    let record = &pod.record;
    let info = json!({
        "source": record.source.as_str(),
        "origin": &*record.origin,
        "phase": pod.status.phase,
        "note": pod.note,
        "qosClass": pod.status.qos_class,
        "containers": Run::all(pod).iter().map(|run| json!({ "name": run.name(), "id": run.id })).collect::<Vec<_>>(),
    });
    HashMap::from([("info".to_owned(), info.to_string())])
}

pub(super) fn metadata(record: &PodRecord) -> cri::PodSandboxMetadata {
    cri::PodSandboxMetadata {
        name: record.key.name().to_owned(),
        uid: record.uid.to_string(),
        namespace: record.key.namespace().to_owned(),
        attempt: 0,
    }
}

/// The attributes that accompany statistics.
pub(super) fn attributes(record: &PodRecord) -> cri::PodSandboxAttributes {
    cri::PodSandboxAttributes {
        id: pod_id(&record.uid),
        metadata: Some(metadata(record)),
        labels: labels(record),
        annotations: annotations(record),
    }
}

/// The pod is ready while it has its namespaces and network and has not ended.
pub(super) fn state(pod: &ObservedPod) -> cri::PodSandboxState {
    let has_ended = pod.status.phase.as_deref().is_some_and(is_terminal_phase);
    let has_started = pod.status.pod_ip.is_some() || pod.containers.values().any(|container| container.pid.is_some());
    match has_started && !has_ended {
        true => cri::PodSandboxState::SandboxReady,
        false => cri::PodSandboxState::SandboxNotready,
    }
}

/// The pod's own labels and kubelet's labels that name it.
pub(super) fn labels(record: &PodRecord) -> HashMap<String, String> {
    let authored = record.pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    authored.chain(pod_labels(record)).collect()
}

fn annotations(record: &PodRecord) -> HashMap<String, String> {
    let none = BTreeMap::new();
    let all = record.pod.metadata.annotations.as_ref().unwrap_or(&none);
    all.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn created_at(pod: &ObservedPod) -> i64 {
    pod.status.start_time.as_ref().map_or(0, |time| nanoseconds(time.0))
}

fn runtime_handler(record: &PodRecord) -> String {
    record.spec().runtime_class_name.clone().unwrap_or_default()
}

fn namespaces(spec: &PodSpec) -> cri::NamespaceOption {
    use cri::NamespaceMode::{Container, Node, Pod};
    let mode = |host: Option<bool>, otherwise| if host == Some(true) { Node } else { otherwise } as i32;
    let processes = if spec.share_process_namespace == Some(true) { Pod } else { Container };
    cri::NamespaceOption {
        network: mode(spec.host_network, Pod),
        pid: mode(spec.host_pid, processes),
        ipc: mode(spec.host_ipc, Pod),
        ..cri::NamespaceOption::default()
    }
}
