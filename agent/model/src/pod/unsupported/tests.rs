use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::pod::unsupported::*;
use crate::pod::{Severity, strict};

fn refused(spec: Value) -> Vec<String> {
    let faults = check(&json!({"spec": spec}), SourceKind::File);
    faults.into_iter().filter(|fault| fault.severity == Severity::Error).map(|fault| fault.path).collect()
}

#[test]
fn unsupported_fields_are_rejected_by_name() {
    let spec = json!({
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "containers": [
            {"name": "r", "livenessProbe": {"httpGet": {"port": 1, "protocol": "HTTP2"}}},
            {"name": "a", "livenessProbe": {"exec": {"command": ["true"]}}, "stdin": true, "stdinOnce": true},
            {"name": "t", "stdin": true, "stdinOnce": true, "tty": true},
            {"name": "b", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 3}],
             "resources": {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1", "example.com/gpu": 1, "kubernetes.io/batch": 1}}}
        ],
        "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {}}]}}]
    });
    let mut refused = refused(spec);
    refused.sort();
    assert_eq!(
        refused,
        [
            "spec.containers[0].livenessProbe.httpGet.protocol",
            "spec.containers[3].resources.limits[kubernetes.io/batch]",
            "spec.volumes[0].projected.sources[1].serviceAccountToken",
        ]
    );
}

#[test]
fn a_medium_that_there_is_not_is_refused() {
    let refused_medium = |medium: &str| refused(json!({"volumes": [{"name": "v", "emptyDir": {"medium": medium}}]}));
    for medium in ["Disk", "HugePages-", "HugePages-big", "Memory-2Mi"] {
        assert_eq!(refused_medium(medium), ["spec.volumes[0].emptyDir.medium"], "{medium}");
    }
}

#[test]
fn what_windows_alone_has_is_a_warning() {
    let options = json!({"runAsUserName": "a"});
    let manifest = json!({"spec": {
        "securityContext": {"windowsOptions": options},
        "containers": [{"name": "a", "securityContext": {"windowsOptions": options}}, {"name": "b", "securityContext": {"windowsOptions": {}}}],
    }});
    let warnings: Vec<String> = check(&manifest, SourceKind::Api).into_iter().map(|fault| fault.to_string()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|fault| fault.contains("has no effect on Linux")), "{warnings:?}");
}

#[test]
fn a_field_with_its_default_is_not_used() {
    let spec = json!({
        "containers": [{"name": "a", "stdin": false, "envFrom": [],
            "lifecycle": {}, "securityContext": {"procMount": "Default", "seLinuxOptions": {}}}],
        "overhead": {}, "setHostnameAsFQDN": true,
        "hostUsers": true, "shareProcessNamespace": false, "os": {"name": "linux"}, "serviceAccountName": "",
        "volumes": [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "h", "emptyDir": {"medium": "HugePages"}}, {"name": "s", "emptyDir": {"medium": "HugePages-2Mi"}}]
    });
    assert_eq!(refused(spec), Vec::<String>::new());
}

#[test]
fn bandwidth_is_a_rate_and_needs_a_network_of_its_own() {
    let faults_of = |rate: &str, host_network: bool| -> Vec<(Severity, String)> {
        let manifest = json!({
            "metadata": {"annotations": {"kubernetes.io/egress-bandwidth": rate}},
            "spec": {"hostNetwork": host_network},
        });
        check(&manifest, SourceKind::File).into_iter().map(|fault| (fault.severity, fault.path)).collect()
    };
    let path = "metadata.annotations[kubernetes.io/egress-bandwidth]".to_owned();
    assert_eq!(faults_of("10M", false), []);
    assert_eq!(faults_of("10M", true), [(Severity::Warning, path.clone())]);
    assert_eq!(faults_of("fast", false), [(Severity::Error, path)]);
}

#[test]
fn readiness_gates_are_a_warning_where_no_client_sets_their_conditions() {
    let manifest = json!({"spec": {"readinessGates": [{"conditionType": "example.com/dns"}]}});
    let faults_from = |source| -> Vec<(Severity, String)> {
        check(&manifest, source).into_iter().map(|fault| (fault.severity, fault.path)).collect()
    };
    assert_eq!(faults_from(SourceKind::Api), []);
    assert_eq!(faults_from(SourceKind::File), [(Severity::Warning, "spec.readinessGates".to_owned())]);
}

#[test]
fn fields_only_a_scheduler_reads_are_warnings() {
    let affinity = json!({"podAffinity": {}, "nodeAffinity": {}});
    let manifest = json!({"spec": {"tolerations": [{"operator": "Exists"}], "affinity": affinity}});
    assert!(check(&manifest, SourceKind::Api).is_empty(), "a Pod of an apiserver was scheduled by them");
    let faults = check(&manifest, SourceKind::File);
    let faults_found: Vec<(Severity, &str)> =
        faults.iter().map(|fault| (fault.severity, fault.path.as_str())).collect();
    assert_eq!(
        faults_found,
        [(Severity::Warning, "spec.affinity.podAffinity"), (Severity::Warning, "spec.tolerations")]
    );
}

#[test]
fn a_priority_class_is_a_warning_unless_it_is_one_of_kubernetes_own() {
    let faults_of = |class: &str| -> Vec<(String, String)> {
        let faults = check(&json!({"spec": {"priorityClassName": class}}), SourceKind::File);
        faults.into_iter().map(|fault| (fault.path, fault.message)).collect()
    };
    for class in ["system-node-critical", "system-cluster-critical", ""] {
        assert_eq!(faults_of(class), [], "{class}");
    }
    let message =
        "has no effect on a node without an apiserver; only system-node-critical and system-cluster-critical have one";
    assert_eq!(faults_of("high"), [("spec.priorityClassName".to_owned(), message.to_owned())]);
}

#[test]
fn tolerations_are_a_warning_unless_a_pushed_pod_tolerates_memory_pressure() {
    let warned = |toleration: Value, source| -> bool {
        !check(&json!({"spec": {"tolerations": [{"key": "other"}, toleration]}}), source).is_empty()
    };
    let pressure = json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"});
    for (toleration, pushed) in [
        (pressure, false),
        (json!({"operator": "Exists"}), false),
        (json!({"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"}), true),
    ] {
        assert_eq!(warned(toleration.clone(), SourceKind::Push), pushed, "{toleration}");
        assert!(warned(toleration.clone(), SourceKind::File) && warned(toleration, SourceKind::Http));
    }
    let message =
        "has no effect on a node without an apiserver; only node.kubernetes.io/memory-pressure of a pushed pod has one";
    let faults = check(&json!({"spec": {"tolerations": [{"key": "other"}]}}), SourceKind::File);
    assert_eq!(faults.first().map(|fault| fault.message.as_str()), Some(message));
}

#[test]
fn fields_only_an_apiserver_serves_are_rejected_with_the_reason() {
    let token = json!({"sources": [{"serviceAccountToken": {"path": "t"}}]});
    let manifest = json!({"spec": {
        "serviceAccountName": "s",
        "volumes": [{"name": "p", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "t", "projected": token}]
    }});
    let paths_of = |source, reason| -> Vec<String> {
        let faults = check(&manifest, source).into_iter().filter(|fault| fault.reason == reason);
        faults.map(|fault| fault.path).collect()
    };
    assert_eq!(
        paths_of(SourceKind::Push, Reason::NeedsApiserver),
        ["spec.serviceAccountName", "spec.volumes[1].projected.sources[0].serviceAccountToken",]
    );
    assert_eq!(paths_of(SourceKind::Api, Reason::NeedsApiserver), Vec::<String>::new());
    assert_eq!(paths_of(SourceKind::Api, Reason::Unsupported), Vec::<String>::new());
}

/// Every field of the Pod API's central objects is supported, rejected, or known to have no effect.
#[test]
fn every_field_is_in_one_of_the_tables() {
    const ACTED_ON: &[&str] = &[
        "spec.activeDeadlineSeconds",
        "spec.containers",
        "spec.initContainers",
        "spec.ephemeralContainers",
        "spec.volumes",
        "spec.dnsConfig",
        "spec.imagePullSecrets",
        "spec.dnsPolicy",
        "spec.enableServiceLinks",
        "spec.hostAliases",
        "spec.hostIPC",
        "spec.hostNetwork",
        "spec.hostPID",
        "spec.hostUsers",
        "spec.hostname",
        "spec.hostnameOverride",
        "spec.nodeName",
        "spec.nodeSelector",
        "spec.resources",
        "spec.overhead",
        "spec.priority",
        "spec.readinessGates",
        "spec.restartPolicy",
        "spec.runtimeClassName",
        "spec.securityContext",
        "spec.setHostnameAsFQDN",
        "spec.shareProcessNamespace",
        "spec.subdomain",
        "spec.terminationGracePeriodSeconds",
        "spec.os",
        "spec.volumes[].configMap",
        "spec.volumes[].downwardAPI",
        "spec.volumes[].emptyDir",
        "spec.volumes[].hostPath",
        "spec.volumes[].image",
        "spec.volumes[].name",
        "spec.volumes[].flexVolume",
        "spec.volumes[].iscsi",
        "spec.volumes[].nfs",
        "spec.volumes[].persistentVolumeClaim",
        "spec.volumes[].projected",
        "spec.volumes[].secret",
        "spec.C.args",
        "spec.C.command",
        "spec.C.env",
        "spec.C.envFrom",
        "spec.C.image",
        "spec.C.imagePullPolicy",
        "spec.C.livenessProbe",
        "spec.C.name",
        "spec.C.ports",
        "spec.C.readinessProbe",
        "spec.C.resizePolicy",
        "spec.C.resources",
        "spec.C.restartPolicy",
        "spec.C.restartPolicyRules",
        "spec.C.securityContext",
        "spec.C.startupProbe",
        "spec.C.terminationMessagePath",
        "spec.C.terminationMessagePolicy",
        "spec.C.stdin",
        "spec.C.stdinOnce",
        "spec.C.tty",
        "spec.C.volumeDevices",
        "spec.C.volumeMounts",
        "spec.C.workingDir",
    ];
    let fields_of = |pod: Value| strict::read::<Pod>(&pod).1.first[0].fields;
    let fields = fields_of(json!({"spec": {"?": 0}})).iter().map(|field| format!("spec.{field}"));
    let container = fields_of(json!({"spec": {"containers": [{"?": 0}]}}));
    let fields = fields.chain(container.iter().map(|field| format!("spec.C.{field}")));
    let volumes = fields_of(json!({"spec": {"volumes": [{"?": 0}]}}));
    let volumes = volumes.iter().map(|field| format!("spec.volumes[].{field}"));
    let fields: Vec<String> = fields.chain(volumes).collect();
    assert!(fields.len() > 90, "{fields:?}");
    let covers = |pattern: &str, field: &str| {
        pattern == field || pattern.starts_with(&format!("{field}.")) || pattern.starts_with(&format!("{field}[]"))
    };
    for field in fields {
        let acted_on = ACTED_ON.contains(&field.as_str());
        let refused = REFUSED.iter().any(|(pattern, ..)| covers(pattern, &field));
        let silent = NO_EFFECT.iter().any(|(pattern, _)| covers(pattern, &field));
        let lacking = NEEDS_APISERVER.iter().any(|(pattern, _)| covers(pattern, &field));
        assert!(acted_on || refused || lacking || silent, "{field} is in no table");
    }
}
