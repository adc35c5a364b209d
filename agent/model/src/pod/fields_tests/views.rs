//! The pods of `tests/views` and `tests/views/cluster`, which are held against a real kubelet, use every field that works;
//! what they cannot use is listed here, with the reason and with the suite that has it.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::{EPHEMERAL, api, is_decided_above};
use crate::pod::unsupported::{NEEDS_APISERVER, NO_EFFECT, NOT_ON_LINUX, REFUSED, UsedIf};

/// Fields without a view, each with all below it, and why.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("spec.C.readinessProbe.terminationGracePeriodSeconds", "Kubernetes refuses it"),
    ("spec.C.volumeDevices", "kubelet has block devices of claims alone: suites volumes and csi"),
    ("spec.resources.claims", "Kubernetes refuses it"),
    ("spec.volumes[].flexVolume", "needs a driver: suite flex_volumes"),
    ("spec.volumes[].iscsi", "needs a target: agent/host/src/volume/iscsi and a case of the machine of its own"),
    ("spec.volumes[].nfs", "needs a server: suite nfs"),
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

/// Whether it is `top` or a field below it.
fn is_of(field: &str, top: &str) -> bool {
    field.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Whether a manifest without an apiserver may have it, and something comes of it.
fn works(field: &str) -> bool {
    let refused = REFUSED.iter().any(|(name, used, _)| *name == field && !matches!(used, UsedIf::Unless(_)));
    let idle = NO_EFFECT.iter().any(|(name, _)| *name == field) || NOT_ON_LINUX.contains(&field);
    let lacking = NEEDS_APISERVER.iter().any(|(name, _)| *name == field);
    !(refused || idle || lacking || is_decided_above(field) || is_of(field, EPHEMERAL))
}

/// Every field that a pod of the corpus uses, named as [`api::fields`] names them.
fn used() -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/views");
    let mut used: BTreeSet<String> = OF_EVERY_POD.iter().map(|field| (*field).to_owned()).collect();
    let of_static_pods = std::fs::read_dir(&dir).unwrap();
    for entry in of_static_pods.chain(std::fs::read_dir(dir.join("cluster")).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let pods: Vec<Value> = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            pods.iter().for_each(|pod| walk(&pod["spec"], "spec", &mut used));
        }
    }
    used
}

fn walk(value: &Value, path: &str, used: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let field = format!("{path}.{name}");
                let below = if matches!(name.as_str(), "containers" | "initContainers") { "spec.C" } else { &field };
                walk(inner, below, used);
                used.insert(field);
            }
        }
        Value::Array(items) if path == "spec.C" => items.iter().for_each(|item| walk(item, path, used)),
        Value::Array(items) => items.iter().for_each(|item| walk(item, &format!("{path}[]"), used)),
        _ => {}
    }
}
