#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::SecurityLevel::{Baseline, Privileged, Restricted};
use super::*;
use crate::manifest::restore;
use crate::source::SourceKind;

/// A pod with two containers, an init container and an ephemeral one, all as `restricted` requires them.
fn hardened() -> Value {
    let container = |name: &str| {
        json!({ "name": name, "image": "a:1", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        } })
    };
    let kinds = ["configMap", "downwardAPI", "emptyDir", "projected", "csi", "image", "persistentVolumeClaim"];
    let volume = |kind: &str| json!({ "name": kind.to_lowercase(), kind: {} });
    let volumes: Vec<Value> = kinds.into_iter().map(volume).collect();
    json!({ "metadata": { "name": "web" }, "spec": {
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "initContainers": [container("i")], "containers": [container("a"), container("b")], "ephemeralContainers": [container("e")],
        "volumes": volumes,
    }})
}

fn record(manifest: &Value) -> PodRecord {
    restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
}

/// The hardened pod with each `value` at its `pointer`. Missing maps are created.
fn with(changes: &[(&str, Value)]) -> PodRecord {
    let mut manifest = hardened();
    for (pointer, value) in changes {
        let mut place = &mut manifest;
        for step in pointer.split('/').skip(1) {
            let step = step.replace("~1", "/");
            place = match step.parse::<usize>() {
                Ok(index) => &mut place[index],
                Err(_) => &mut place[step.as_str()],
            };
        }
        *place = value.clone();
    }
    record(&manifest)
}

fn output(record: &PodRecord, level: SecurityLevel) -> String {
    let broken = violations(record, level);
    broken
        .into_iter()
        .map(|violation| format!("{} ({})", violation.reason, violation.detail))
        .collect::<Vec<_>>()
        .join(", ")
}

const POD: &str = "/spec/securityContext";
const A: &str = "/spec/containers/0/securityContext";

fn at(place: &str, field: &str) -> String {
    format!("{place}/{field}")
}

#[test]
fn a_hardened_pod_may_run_at_every_level_and_a_plain_one_at_the_first_two() {
    let hardened = record(&hardened());
    let plain = record(&json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "a" }] } }));
    for level in [Privileged, Baseline, Restricted] {
        assert_eq!(check(&hardened, level), None, "{level:?}");
        assert_eq!(level.as_str().parse(), Ok(level));
    }
    assert_eq!(check(&plain, Baseline), None);
    let fault = check(&plain, Restricted).unwrap();
    assert_eq!(
        fault.message,
        "pod default/web-edge1 violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \
         \"a\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"a\" must \
         set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"a\" must set \
         securityContext.runAsNonRoot=true), seccompProfile (pod or container \"a\" must set \
         securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    assert_eq!((fault.path.as_str(), fault.remedy.contains("podSecurity")), ("spec", true));
    assert_eq!("strict".parse::<SecurityLevel>(), Err(()));
}

#[test]
fn baseline_forbids_what_the_standard_names() {
    let port = |number: u16| json!([{ "containerPort": 1, "hostPort": number }]);
    let annotation = "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1a";
    let cases: Vec<(Vec<(String, Value)>, &str)> = vec![
        (
            vec![("/spec/hostNetwork".into(), json!(true)), ("/spec/hostIPC".into(), json!(true))],
            "host namespaces (hostNetwork=true, hostIPC=true)",
        ),
        (vec![("/spec/hostPID".into(), json!(true))], "host namespaces (hostPID=true)"),
        (
            vec![
                (at(A, "privileged"), json!(true)),
                ("/spec/ephemeralContainers/0/securityContext/privileged".into(), json!(true)),
            ],
            "privileged (containers \"a\", \"e\" must not set securityContext.privileged=true)",
        ),
        (
            vec![(at(A, "capabilities/add"), json!(["CHOWN", "SYS_ADMIN", "NET_RAW"]))],
            "non-default capabilities (container \"a\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
        ),
        (
            vec![("/spec/volumes/0".into(), json!({ "name": "v", "hostPath": { "path": "/" } }))],
            "hostPath volumes (volume \"v\")",
        ),
        (
            vec![("/spec/containers/0/ports".into(), port(80)), ("/spec/containers/1/ports".into(), port(443))],
            "hostPort (containers \"a\", \"b\" use hostPorts 443, 80)",
        ),
        (
            vec![
                ("/spec/containers/0/livenessProbe".into(), json!({ "httpGet": { "port": 1, "host": "h" } })),
                (
                    "/spec/containers/0/lifecycle".into(),
                    json!({ "preStop": { "tcpSocket": { "port": 1, "host": "g" } } }),
                ),
            ],
            "probe or lifecycle host (container \"a\" uses probe or lifecycle hosts \"g\", \"h\")",
        ),
        (
            vec![
                (at(POD, "appArmorProfile"), json!({ "type": "Unconfined" })),
                (annotation.into(), json!("unconfined")),
            ],
            "forbidden AppArmor profiles (pod and annotation must not set AppArmor profile type to \"Unconfined\", \
             \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
        ),
        (
            vec![(at(A, "appArmorProfile"), json!({ "type": "Unconfined" }))],
            "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            vec![
                (at(POD, "seLinuxOptions"), json!({ "type": "spc_t", "user": "u" })),
                (at(A, "seLinuxOptions"), json!({ "role": "r" })),
            ],
            "seLinuxOptions (pod and container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user \
             may not be set; role may not be set)",
        ),
        (
            vec![(at(A, "procMount"), json!("Unmasked"))],
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            vec![(at(A, "seccompProfile"), json!({ "type": "Unconfined" }))],
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            vec![(
                at(POD, "sysctls"),
                json!([{ "name": "kernel.msgmax", "value": "1" }, { "name": "net.ipv4.tcp_rmem", "value": "1" }]),
            )],
            "forbidden sysctls (kernel.msgmax)",
        ),
    ];
    for (changes, expected) in cases {
        let changes: Vec<(&str, Value)> = changes.iter().map(|(at, value)| (at.as_str(), value.clone())).collect();
        let record = with(&changes);
        assert_eq!(output(&record, Baseline), expected, "{changes:?}");
        assert!(!violations(&record, Restricted).is_empty(), "{expected}: restricted is stricter");
        assert_eq!(check(&record, Privileged), None);
    }
    let own_users =
        with(&[("/spec/hostUsers", json!(false)), ("/spec/containers/0/securityContext/procMount", json!("Unmasked"))]);
    assert_eq!(output(&own_users, Baseline), "", "root in it is not root on the node");
    assert!(output(&own_users, Restricted).starts_with("procMount ("), "here it counts all the same");
}

#[test]
fn restricted_forbids_more() {
    let cases: [(&str, Value, &str); 9] = [
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(true),
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({ "drop": ["CHOWN"], "add": ["CHOWN", "NET_BIND_SERVICE"] }),
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]; container \
             \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            "/spec/volumes/0",
            json!({ "name": "v", "nfs": { "server": "s", "path": "/" } }),
            "restricted volume types (volume \"v\" uses restricted volume type \"nfs\")",
        ),
        (
            "/spec/volumes/0",
            json!({ "name": "v", "hostPath": { "path": "/" } }),
            "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
        ),
        (
            "/spec/containers/0/securityContext/runAsNonRoot",
            json!(false),
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
        (
            "/spec/securityContext/runAsNonRoot",
            Value::Null,
            "runAsNonRoot != true (pod or containers \"i\", \"a\", \"b\", \"e\" must set securityContext.runAsNonRoot=true)",
        ),
        ("/spec/securityContext/runAsUser", json!(0), "runAsUser=0 (pod must not set runAsUser=0)"),
        (
            "/spec/securityContext/seccompProfile",
            Value::Null,
            "seccompProfile (pod or containers \"i\", \"a\", \"b\", \"e\" must set securityContext.seccompProfile.type to \
             \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            "/spec/securityContext/seccompProfile",
            json!({ "type": "Unconfined" }),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(output(&with(&[(pointer, value)]), Restricted), expected);
    }
    let root = [
        ("/spec/hostUsers", json!(false)),
        ("/spec/securityContext", json!({ "runAsUser": 0, "seccompProfile": { "type": "Localhost" } })),
    ];
    assert_eq!(output(&with(&root), Restricted), "", "root in it is not root on the node");
}
