//! The pods of `tests/views` and `tests/views/cluster`, which are compared with a real kubelet, use every field that
//! works. What they cannot use is listed here, with the reason and with the suite that covers it.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::{EPHEMERAL, api, is_decided_above};
use crate::pod::unsupported::{NEEDS_APISERVER, NO_EFFECT, NOT_ON_LINUX, REFUSED, UsedIf};

/// Fields, with all below them, that no view covers, and why.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("spec.C.readinessProbe.terminationGracePeriodSeconds", "Kubernetes refuses it"),
    ("spec.C.volumeDevices", "kubelet has block devices of claims alone: suites volumes and csi"),
    ("spec.resources.claims", "Kubernetes refuses it"),
    ("spec.volumes[].flexVolume", "needs a driver: suite flex_volumes"),
    ("spec.volumes[].iscsi", "needs a target: agent/host/src/volume/iscsi and a case of the machine of its own"),
    ("spec.volumes[].nfs", "needs a server: suite nfs"),
    ("spec.volumes[].persistentVolumeClaim", "a static pod of kubelet has no claims: suite claims"),
];

/// Fields with few values, and their values that differ from the default. Each occurs in a pod.
const VALUES: &[(&str, &[&str])] = &[
    ("spec.restartPolicy", &["OnFailure", "Never"]),
    ("spec.dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ("spec.hostUsers", &["true", "false"]),
    ("spec.hostNetwork", &["true"]),
    ("spec.hostPID", &["true"]),
    ("spec.hostIPC", &["true"]),
    ("spec.shareProcessNamespace", &["true"]),
    ("spec.setHostnameAsFQDN", &["true"]),
    ("spec.enableServiceLinks", &["false"]),
    ("spec.securityContext.fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
    ("spec.securityContext.supplementalGroupsPolicy", &["Merge", "Strict"]),
    ("spec.securityContext.seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ("spec.securityContext.seccompProfile.type", &["RuntimeDefault", "Unconfined", "Localhost"]),
    ("spec.securityContext.appArmorProfile.type", &["RuntimeDefault", "Unconfined", "Localhost"]),
    ("spec.C.securityContext.seccompProfile.type", &["RuntimeDefault", "Unconfined", "Localhost"]),
    ("spec.C.securityContext.appArmorProfile.type", &["RuntimeDefault", "Unconfined", "Localhost"]),
    ("spec.C.securityContext.procMount", &["Default", "Unmasked"]),
    ("spec.C.securityContext.privileged", &["true"]),
    ("spec.C.securityContext.readOnlyRootFilesystem", &["true"]),
    ("spec.C.securityContext.allowPrivilegeEscalation", &["false"]),
    ("spec.C.imagePullPolicy", &["Always", "Never"]),
    ("spec.C.terminationMessagePolicy", &["FallbackToLogsOnError"]),
    ("spec.C.restartPolicy", &["Always", "OnFailure", "Never"]),
    ("spec.C.restartPolicyRules[].action", &["Restart", "RestartAllContainers"]),
    ("spec.C.restartPolicyRules[].exitCodes.operator", &["In", "NotIn"]),
    ("spec.C.resizePolicy[].restartPolicy", &["NotRequired", "RestartContainer"]),
    ("spec.C.ports[].protocol", &["TCP", "UDP", "SCTP"]),
    ("spec.C.volumeMounts[].mountPropagation", &["None", "HostToContainer", "Bidirectional"]),
    ("spec.C.volumeMounts[].recursiveReadOnly", &["Disabled", "IfPossible", "Enabled"]),
    ("spec.C.volumeMounts[].readOnly", &["true"]),
    ("spec.C.livenessProbe.httpGet.scheme", &["HTTP", "HTTPS"]),
    ("spec.C.readinessProbe.httpGet.scheme", &["HTTP", "HTTPS"]),
    ("spec.C.startupProbe.httpGet.scheme", &["HTTP", "HTTPS"]),
    ("spec.C.lifecycle.postStart.httpGet.scheme", &["HTTP", "HTTPS"]),
    ("spec.C.lifecycle.preStop.httpGet.scheme", &["HTTP", "HTTPS"]),
    ("spec.volumes[].emptyDir.medium", &["Memory", "HugePages", "HugePages-2Mi"]),
    (
        "spec.volumes[].hostPath.type",
        &["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"],
    ),
    ("spec.volumes[].image.pullPolicy", &["Always", "Never"]),
];

/// Values that no view covers, and why.
const VALUES_NOT_SHOWN: &[(&str, &str, &str)] = &[
    ("spec.hostUsers", "false", "kubelet needs a runc that maps users, 1.2: suite security"),
    ("spec.C.securityContext.procMount", "Unmasked", "needs hostUsers: false: suite security"),
    ("spec.C.volumeMounts[].recursiveReadOnly", "Enabled", "kubelet needs runc 1.1.14: suite volumes"),
    ("spec.C.imagePullPolicy", "Always", "the images are imported: suite images"),
    ("spec.volumes[].image.pullPolicy", "Always", "the images are imported: suite images"),
    ("spec.volumes[].emptyDir.medium", "HugePages", "needs a pool of huge pages: suite volumes"),
    ("spec.volumes[].emptyDir.medium", "HugePages-2Mi", "needs a pool of huge pages: suite volumes"),
    ("spec.volumes[].hostPath.type", "BlockDevice", "needs a device of the machine's: suite volumes"),
];

/// Fields that every manifest gets from the harness (`tests/src/view/manifests.rs`).
const OF_EVERY_POD: &[&str] = &["spec.containers", "spec.C.name", "spec.C.image", "spec.terminationGracePeriodSeconds"];

#[test]
fn the_views_use_every_field_that_works() {
    let used = used();
    let unused: Vec<_> = api::fields()
        .into_iter()
        .filter(|field| works(field) && !used.contains(field) && !NOT_SHOWN.iter().any(|(top, _)| is_of(field, top)))
        .collect();
    assert!(unused.is_empty(), "no pod of tests/views uses:\n{}", unused.join("\n"));
}

#[test]
fn what_the_views_leave_out_works_and_is_not_used() {
    let (fields, used) = (api::fields(), used());
    for (top, why) in NOT_SHOWN {
        assert!(fields.iter().any(|field| field == top && works(field)), "{top} is no field that works");
        assert!(!used.iter().any(|field| is_of(field, top)), "{top} is used all the same, in spite of: {why}");
    }
}

#[test]
fn the_views_use_every_value_that_makes_a_difference() {
    let used = used_values();
    let all = VALUES.iter().flat_map(|(field, values)| values.iter().map(move |value| format!("{field}: {value}")));
    let left_out: BTreeSet<String> =
        VALUES_NOT_SHOWN.iter().map(|(field, value, _)| format!("{field}: {value}")).collect();
    let unused: Vec<String> = all.filter(|value| !used.contains(value) && !left_out.contains(value)).collect();
    assert!(unused.is_empty(), "no pod of tests/views has:\n{}", unused.join("\n"));
    let wrong: Vec<_> = left_out.intersection(&used).collect();
    assert!(wrong.is_empty(), "used all the same: {wrong:?}");
}

/// Whether it is `top` or a field below it.
fn is_of(field: &str, top: &str) -> bool {
    field.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Whether a manifest without an apiserver may have it, with an effect.
fn works(field: &str) -> bool {
    let refused = REFUSED.iter().any(|(name, used, _)| *name == field && !matches!(used, UsedIf::Unless(_)));
    let idle = NO_EFFECT.iter().any(|(name, _)| *name == field) || NOT_ON_LINUX.contains(&field);
    let lacking = NEEDS_APISERVER.iter().any(|(name, _)| *name == field);
    !(refused || idle || lacking || is_decided_above(field) || is_of(field, EPHEMERAL))
}

/// Every field that a pod of the corpus uses, named as [`api::fields`] names them.
fn used() -> BTreeSet<String> {
    let mut used: BTreeSet<String> = OF_EVERY_POD.iter().map(|field| (*field).to_owned()).collect();
    visit(&mut |field, _| {
        used.insert(field.to_owned());
    });
    used
}

/// Every field with a value that is a word or a number, as `field: value`.
fn used_values() -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    visit(&mut |field, value| match value {
        Value::String(text) => drop(used.insert(format!("{field}: {text}"))),
        Value::Bool(_) | Value::Number(_) => drop(used.insert(format!("{field}: {value}"))),
        _ => {}
    });
    used
}

/// Visits every field of every pod of the corpus.
fn visit(see: &mut impl FnMut(&str, &Value)) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/views");
    let of_static_pods = std::fs::read_dir(&dir).unwrap();
    for entry in of_static_pods.chain(std::fs::read_dir(dir.join("cluster")).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let pods: Vec<Value> = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            pods.iter().for_each(|pod| walk(&pod["spec"], "spec", see));
        }
    }
}

fn walk(value: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let field = format!("{path}.{name}");
                let below = if matches!(name.as_str(), "containers" | "initContainers") { "spec.C" } else { &field };
                walk(inner, below, see);
                see(&field, inner);
            }
        }
        Value::Array(items) if path == "spec.C" => items.iter().for_each(|item| walk(item, path, see)),
        Value::Array(items) => items.iter().for_each(|item| walk(item, &format!("{path}[]"), see)),
        _ => {}
    }
}
