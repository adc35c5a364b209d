//! Manifests of hostile size.
#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::pod::Severity;
use crate::pod::fault::{MAX_FAULTS, summary};

fn read_file(text: &str) -> Manifest {
    read(text.as_bytes(), "web.yaml", SourceKind::File, "edge1")
}

fn pod(name: &str) -> Value {
    let spec = json!({ "containers": [{ "name": "main", "image": "app:1" }] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

#[test]
fn the_faults_of_one_document_are_limited_and_counted() {
    let unknown: String = (0..5_000).map(|number| format!("  f{number}: 0\n")).collect();
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: []\n{unknown}");
    let manifest = read_file(&text);
    assert_eq!(manifest.faults.len(), MAX_FAULTS + 1);
    assert!(summary(&manifest.faults, 200).ends_with(" more faults"), "{}", summary(&manifest.faults, 200));
    assert_eq!(manifest.faults.iter().map(Fault::count).sum::<usize>(), 5_000);
    assert!(manifest.pods.is_empty() && manifest.refused.contains(&PodKey::new("default", "web-edge1")));
}

#[test]
fn a_manifest_in_utf16_is_read_with_the_positions_of_its_faults() {
    let utf16 = |text: &str| -> Vec<u8> {
        [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
    };
    let text = "apiVersion: v1\r\nkind: Pod\r\nmetadata: {name: web}\r\nspec:\r\n  containers: [{name: a, image: \"b:ü\"}]\r\n";
    let manifest = read(&utf16(text), "web.yaml", SourceKind::File, "edge1");
    assert_eq!(manifest.faults, []);
    assert_eq!(manifest.pods[0].fingerprint, read_file(text).pods[0].fingerprint);
    let manifest = read(&utf16(&format!("{text}  imag: 1\r\n")), "web.yaml", SourceKind::File, "edge1");
    assert_eq!(manifest.faults[0].position, Some((6, 3)), "{:?}", manifest.faults);
}

#[test]
fn a_manifests_pod_is_new_whatever_an_apiserver_wrote_into_it() {
    let mut written = pod("web");
    written["metadata"]["creationTimestamp"] = json!("2023-01-01T00:00:00Z");
    assert_eq!(read_file(&written.to_string()).faults, []);
    written["metadata"]["deletionTimestamp"] = json!("2023-01-02T00:00:00Z");
    written["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    let manifest = read_file(&written.to_string());
    let [fault] = &manifest.faults[..] else { panic!("{:?}", manifest.faults) };
    assert_eq!((fault.severity, fault.path.as_str()), (crate::pod::Severity::Warning, "metadata.deletionTimestamp"));
    let record = &manifest.pods[0];
    assert!(!record.is_deleting() && record.pod.metadata.creation_timestamp.is_none());
    let restored = restore(&record.manifest, "web.yaml", SourceKind::File, "edge1").unwrap();
    assert!(restored == **record && !restored.is_deleting());
}

#[test]
fn fields_that_do_not_exist_or_are_given_twice_are_warnings_where_the_source_has_them_so() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, lables: {a: b}}\nspec:\n  hostNetwork: true\n  \
                hostNetwork: false\n  containers: [{name: a, image: 'a:1', imag: b}]\n---\n\
                {apiVersion: v1, kind: ConfigMap, metadata: {name: m}, dat: {}, data: {a: b, a: c}}\n";
    let strict = read_file(text);
    assert_eq!((strict.pods.len(), strict.objects.len(), strict.faults.len()), (0, 0, 5));
    let lenient = read_leniently(text.as_bytes(), "web.yaml", SourceKind::File, "edge1");
    assert!(lenient.faults.iter().all(|fault| fault.severity == crate::pod::Severity::Warning), "{:?}", lenient.faults);
    assert_eq!((lenient.pods.len(), lenient.objects.len(), lenient.faults.len()), (1, 1, 5));
    assert!(lenient.refused.is_empty() && !lenient.unknown_pod_refused);
    assert_eq!(lenient.pods[0].spec().host_network, Some(false), "the last one counts");
    let restored = restore(&lenient.pods[0].manifest, "web.yaml", SourceKind::File, "edge1").unwrap();
    assert!(restored == *lenient.pods[0] && restored.pod == lenient.pods[0].pod);
    // Everything else is refused as before.
    let invalid = text.replace("name: a, image", "image");
    assert!(read_leniently(invalid.as_bytes(), "web.yaml", SourceKind::File, "edge1").pods.is_empty());
}

#[test]
fn a_null_in_a_list_or_map_is_kept_as_what_it_stands_for() {
    let mut written = pod("web");
    written["metadata"]["labels"] = json!({"a": null});
    written["spec"]["containers"][0]["args"] = json!(["1", null]);
    written["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": null}});
    let manifest = read_file(&written.to_string());
    assert_eq!(manifest.faults, []);
    let record = &manifest.pods[0];
    assert_eq!(record.spec().containers[0].args.as_ref().unwrap(), &["1", ""]);
    assert_eq!(record.pod.metadata.labels.as_ref().unwrap()["a"], "");
    let restored = restore(&record.manifest, "web.yaml", SourceKind::File, "edge1").unwrap();
    assert!(restored == **record && restored.pod == record.pod);
    written["metadata"]["labels"] = json!(null);
    assert!(read_file(&written.to_string()).pods[0].fingerprint != record.fingerprint, "another label");
}

#[test]
fn a_fault_that_follows_from_another_is_not_reported() {
    let mut written = pod("web");
    written["spec"]["containers"][0]["command"] = json!(["sleep", 5]);
    let manifest = read_file(&written.to_string());
    let faults: Vec<String> = manifest.faults.iter().map(ToString::to_string).collect();
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    assert!(fault.ends_with("spec.containers[0].command[1]: must be a string, not integer `5`"), "{fault}");
}

#[test]
fn the_faults_of_all_documents_together_are_limited() {
    let broken = |number: usize| {
        let mut pod = pod(&format!("pod-{number}"));
        pod["spec"]["nodeSelektor"] = json!({});
        format!("--- {pod}\n")
    };
    let text: String = (0..300).map(broken).chain([format!("--- {}\n", pod("good"))]).collect();
    let manifest = read_file(&text);
    assert_eq!(manifest.faults.len(), MAX_FAULTS + 1);
    assert_eq!(manifest.faults.iter().map(Fault::count).sum::<usize>(), 300);
    assert_eq!((manifest.pods.len(), manifest.refused.len()), (1, 300));
}

#[test]
fn overlong_names_and_values_are_cut_in_faults() {
    let mut pod = pod("web");
    pod["spec"]["x".repeat(1_000)] = json!(0);
    pod["spec"]["hostNetwork"] = json!("y".repeat(1 << 20));
    let manifest = read_file(&pod.to_string());
    let texts: Vec<String> = manifest.faults.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|text| text.len() < 1_000), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("xxx…: no such field")), "{texts:?}");
    assert!(texts.iter().any(|text| text.ends_with("yyy…")), "{texts:?}");
}

#[test]
fn a_pod_larger_than_an_apiserver_stores_is_refused() {
    let aliases = |count: usize| {
        let mut pod = pod("web");
        pod["spec"]["hostAliases"] =
            json!(vec![json!({ "ip": "10.0.0.1", "hostnames": vec!["a".repeat(60); 10] }); count]);
        read_file(&pod.to_string())
    };
    assert_eq!(aliases(2_200).faults, []);
    let large = aliases(2_500);
    let [fault] = &large.faults[..] else { panic!("{:?}", large.faults) };
    let text = fault.to_string();
    assert!(
        text.starts_with("web.yaml:1:") && text.contains(": spec.hostAliases: the largest part of a Pod of "),
        "{text}"
    );
    assert!(large.pods.is_empty());
}

#[test]
fn kinds_that_a_node_does_not_act_on_are_left_out_with_one_remark_each() {
    let object =
        |version: &str, kind: &str| format!("---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
    let rbac = "rbac.authorization.k8s.io/v1";
    let text = [
        object("v1", "Namespace"),
        object("v1", "ServiceAccount"),
        object(rbac, "Role"),
        object(rbac, "Role"),
        object("policy/v1", "PodDisruptionBudget"),
    ];
    let read = read(text.concat().as_bytes(), "chart.yaml", SourceKind::File, "node");
    let faults: Vec<String> = read.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "chart.yaml:11:1: kind: Role has no effect without an apiserver (2 objects)",
            "chart.yaml:19:1: kind: PodDisruptionBudget has no effect without an apiserver",
        ]
    );
    assert!(read.faults.iter().all(|fault| fault.severity == Severity::Warning));
    assert_eq!((read.left_out, read.unknown_pod_refused, read.unknown_object_refused), (5, false, false));
}

#[test]
fn an_ingress_is_refused_with_what_to_use_instead() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\n";
    let read = read(text.as_bytes(), "chart.yaml", SourceKind::File, "node");
    assert_eq!(
        read.faults[0].to_string(),
        "chart.yaml:2:1: kind: Ingress is not accepted: nothing on a node without an apiserver serves it; \
         run an ingress controller as a pod, with a Service of type LoadBalancer"
    );
    assert!(!read.unknown_pod_refused && read.refused.is_empty());
}
