//! kubelet's test cases for reading a manifest (docs/kubelet.md), as tables.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::manifest::{Manifest, read};
use crate::source::SourceKind;

const YAML: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: '0123'
spec:
  containers:
  - name: web
    image: registry.test/web
  - {name: proxy, image: 'proxy:1', ports: [{containerPort: 80}]}
status:
  podIP: 10.1.2.3
  podIPs: [{ip: 10.1.2.3}]
";

fn manifest(edit: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
    });
    for (pointer, value) in edit.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        manifest.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    manifest
}

fn read_on(node: &str, text: &str) -> Manifest {
    read(text.as_bytes(), "web.yaml", SourceKind::File, node)
}

#[test]
fn yaml_and_json_decode_to_one_object_with_all_defaults_and_the_authored_values() {
    let from_yaml = read_on("edge1", YAML);
    let written: Value = serde_json::from_slice(&from_yaml.pods[0].manifest).unwrap();
    let mut with_status = written.clone();
    with_status["status"] = json!({ "podIP": "10.1.2.3", "podIPs": [{ "ip": "10.1.2.3" }] });
    let from_json = read_on("edge1", &with_status.to_string());
    let (record, other) = (&from_yaml.pods[0], &from_json.pods[0]);
    assert_eq!((record, &record.pod), (other, &other.pod));

    assert_eq!((record.key.namespace(), record.key.name(), record.uid.as_str()), ("shop", "web-edge1", "0123"));
    let (metadata, spec, status) = (&record.pod.metadata, record.spec(), record.pod.status.as_ref().unwrap());
    assert_eq!(metadata.annotations.as_ref().unwrap()["kubernetes.io/config.hash"], "0123");
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.2.3"));
    assert_eq!(status.pod_ips.as_ref().unwrap()[0].ip, "10.1.2.3");
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    assert_eq!(spec.dns_policy.as_deref(), Some("ClusterFirst"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("default-scheduler"));
    assert_eq!((spec.termination_grace_period_seconds, spec.enable_service_links), (Some(30), Some(true)));
    assert_eq!((spec.node_name.as_deref(), spec.security_context.is_some()), (Some("edge1"), true));
    let toleration = &spec.tolerations.as_ref().unwrap()[0];
    assert_eq!((toleration.operator.as_deref(), toleration.effect.as_deref()), (Some("Exists"), Some("NoExecute")));
    let policies: Vec<_> = spec.containers.iter().map(|container| container.image_pull_policy.as_deref()).collect();
    assert_eq!(policies, [Some("Always"), Some("IfNotPresent")]);
    let web = &spec.containers[0];
    assert_eq!(web.termination_message_path.as_deref(), Some("/dev/termination-log"));
    assert_eq!(web.termination_message_policy.as_deref(), Some("File"));
    assert_eq!(spec.containers[1].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
}

#[test]
fn fields_that_need_an_apiserver_are_errors_and_fields_without_effect_are_warnings() {
    let bundle = json!([{ "name": "ca", "projected": { "sources": [
        { "clusterTrustBundle": { "name": "ca", "path": "ca.pem" } }
    ] } }]);
    // The edit, the field of the fault, whether the pod is accepted.
    let cases = [
        (json!({ "/spec/volumes": bundle }), "spec.volumes[0].projected", false),
        (json!({ "/spec/resourceClaims": [{ "name": "gpu" }] }), "spec.resourceClaims", false),
        (json!({ "/spec/serviceAccountName": "web" }), "spec.serviceAccountName", false),
        (json!({ "/spec/priorityClassName": "high" }), "spec.priorityClassName", true),
        (json!({ "/spec/preemptionPolicy": "Never" }), "spec.preemptionPolicy", true),
    ];
    for (edit, path, accepted) in cases {
        let read = read_on("edge1", &manifest(edit.clone()).to_string());
        assert_eq!(read.pods.len(), usize::from(accepted), "{edit}: {:?}", read.faults);
        let severity = if accepted { Severity::Warning } else { Severity::Error };
        let reported = |fault: &Fault| fault.path.starts_with(path) && fault.severity == severity;
        assert!(read.faults.iter().any(reported), "{edit}: {:?}", read.faults);
    }
}

/// If authors followed a warning about its priority class, etcd would become evictable.
#[test]
fn the_manifests_of_kubeadms_control_plane_have_no_fault() {
    for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let file = format!("{}/tests/kubeadm/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let read = read_on("node", &std::fs::read_to_string(file).unwrap());
        assert!(read.pods.len() == 1 && read.faults.is_empty(), "{name}: {:?}", read.faults);
    }
}

#[test]
fn a_list_is_read_as_yaml_and_as_json_and_an_empty_namespace_is_the_default_one() {
    let second = manifest(json!({ "/metadata/name": "shop", "/metadata/namespace": "" }));
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": [manifest(json!({})), second] });
    let indented = serde_json::to_string_pretty(&list).unwrap();
    let yaml = "apiVersion: v1\nkind: PodList\nitems:\n- &web {apiVersion: v1, kind: Pod, metadata: {name: web}, spec: \
                {containers: [{name: web, image: 'web:1'}]}}\n- {<<: *web, metadata: {name: shop, namespace: ''}}\n";
    for text in [list.to_string(), indented, yaml.to_owned()] {
        let read = read_on("edge1", &text);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        let keys: Vec<String> = read.pods.iter().map(|pod| pod.key.to_string()).collect();
        assert_eq!(keys, ["default/web-edge1", "default/shop-edge1"]);
    }
}

#[test]
fn the_nodes_name_is_lower_case_in_pod_names_and_unchanged_in_the_spec() {
    for node in ["node1", "Node1", "NODE1"] {
        let pod = &read_on(node, &manifest(json!({})).to_string()).pods[0];
        assert_eq!((pod.key.name(), pod.spec().node_name.as_deref()), ("web-node1", Some(node)));
    }
    let upper = read_on("node1", &manifest(json!({ "/metadata/name": "Web" })).to_string());
    assert!(upper.pods.is_empty() && upper.faults.iter().any(|fault| fault.path == "metadata.name"));
}

#[test]
fn a_sidecar_is_accepted() {
    let sidecar = json!([{ "name": "log", "image": "log:1", "restartPolicy": "Always" }]);
    let read = read_on("edge1", &manifest(json!({ "/spec/initContainers": sidecar })).to_string());
    assert!(read.pods.len() == 1 && read.faults.is_empty(), "{:?}", read.faults);
}

#[test]
fn a_duplicate_key_rejects_only_the_item_that_contains_it() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {containers: [{name: c, image: 'c:1'EXTRA}]}}";
    let good = pod.replace("NAME", "good").replace("EXTRA", "");
    let twice = pod.replace("NAME", "twice").replace("EXTRA", ", image: 'd:1'");
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: b, a: c}}";
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {good}\n- {twice}\n- {map}\n");
    let read = read_on("n", &list);
    assert_eq!((read.pods.len(), read.objects.len(), read.unknown_pod_refused), (1, 0, false), "{:?}", read.faults);
    let paths: Vec<&str> = read.faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["items[1].spec.containers[0].image", "items[2].data.a"]);
    let read = read_on("n", &format!("{list}items: []\n"));
    assert!(read.pods.is_empty() && read.unknown_pod_refused, "{:?}", read.faults);
    let read = read_on("n", &format!("{good}\n---\na: [\n---\n{}", good.replace("good", "other")));
    assert_eq!((read.pods.len(), read.unknown_pod_refused), (2, true), "{:?}", read.faults);
}

/// A rejected document keeps the last good version of everything that it may be, and of nothing else.
#[test]
fn a_rejected_document_names_everything_it_may_be() {
    let table: [(&str, &[&str], bool, bool); 7] = [
        ("kind: Pod\nmetadata: {name: a}", &["default/a-node"], false, false),
        ("kind: Pod\nmetadata: {}", &[], true, false),
        ("kind: Pod\nmetadata: {name: a, namespace: [x]}", &[], true, false),
        ("kind: Secret\nmetadata: {name: a, namespace: lab}\ndata: {k: 5}", &["Secret lab/a"], false, false),
        ("kind: ConfigMap\nmetadata: {}", &[], false, true),
        // A misspelt kind.
        (
            "kind: Secert\nmetadata: {name: a}",
            &[
                "default/a-node",
                "ConfigMap default/a",
                "Secret default/a",
                "PersistentVolumeClaim default/a",
                "Deployment default/a",
                "ReplicaSet default/a",
                "DaemonSet default/a",
                "StatefulSet default/a",
                "Job default/a",
                "CronJob default/a",
                "Service default/a",
            ],
            false,
            false,
        ),
        ("knd: Secret\nmetadata: {}", &[], true, true),
    ];
    for (text, expected, pod, object) in table {
        let read = read(format!("apiVersion: v1\n{text}\n").as_bytes(), "f.yaml", SourceKind::File, "node");
        let pods = read.refused.iter().map(ToString::to_string);
        let refused: Vec<String> = pods.chain(read.refused_objects.iter().map(ToString::to_string)).collect();
        assert_eq!(refused, expected, "{text}");
        assert_eq!((read.unknown_pod_refused, read.unknown_object_refused), (pod, object), "{text}");
    }
}
