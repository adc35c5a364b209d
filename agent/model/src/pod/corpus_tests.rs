//! The corpus: for every manifest in it, limpet gives the verdict of a real apiserver (recorded by `cargo xtask
//! corpus`), and the same defaulted object. Intended differences are listed here with their reason.

#![allow(clippy::unwrap_used)]

use crate::manifest;
use std::collections::BTreeSet;

use limpet_tests::corpus::{self, Answer, Answers, Case};
use serde_json::Value;

use super::{Reason, Severity, decode, default, quantity};
use crate::source::SourceKind;

/// Cases in which limpet's verdict differs, and why.
const VERDICTS: &[(&str, &str)] = &[
    ("mount/device of a hostPath", "a pod without an apiserver has no claims, and may have a device all the same"),
    ("metadata/annotations just fit", "the node adds annotations of its own, as kubelet does"),
    ("pod/nodeName in capitals", "the node writes its own name there"),
    ("security/root and no root", "kubelet accepts it and never starts it; limpet rejects it at once"),
    ("volume/claim of an ephemeral volume", "the pod's name has the node's in it, and so have its claims"),
    ("volume/hostPath that is relative", "relative to what? kubelet takes its own working directory"),
];

/// Paths where limpet's object differs, by case, and why.
const OBJECTS: &[(&str, &str, &str)] = &[
    ("scheduling/pod affinity of keys", "/spec/affinity", "nothing schedules here: the selector stays as it is"),
    ("scheduling/spread of keys", "/spec/topologySpreadConstraints", "the same"),
];

/// Fields that the apiserver calls by another name than the manifest does: by case, its name and limpet's.
const FIELDS: &[(&str, &str, &str)] = &[
    ("metadata/seccomp", "metadata.annotations.", "metadata.annotations"),
    ("pod/hostUsers", "spec.HostPID", "spec.hostPID"),
    ("pod/hostUsers", "spec.HostIPC", "spec.hostIPC"),
    ("projected/two files", PROJECTED, "spec.volumes.projected.sources.secret.items.path"),
    (
        "projected/certificate of one path",
        PROJECTED,
        "spec.volumes.projected.sources.podCertificate.certificateChainPath",
    ),
    ("projected/token", "spec.volumes.projected.path", "spec.volumes.projected.sources.serviceAccountToken.path"),
    (
        "projected/downwardAPI",
        "spec.volumes.projected.sources.downwardAPI",
        "spec.volumes.projected.sources.downwardAPI.items",
    ),
    ("resources/pod limits", "spec.resources.containers.limits", "spec.containers.resources.limits"),
    (
        "scheduling/pod affinity of an odd namespace",
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.namespace",
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.namespaces",
    ),
    ("volume/downwardAPI", "spec.volumes.downwardAPI", "spec.volumes.downwardAPI.items"),
    ("volume/csi", "spec.volumes.csi.name", "spec.volumes.csi.nodePublishSecretRef.name"),
    ("volume/iscsi", "spec.volumes.iscsi.initiatorname", "spec.volumes.iscsi.initiatorName"),
    ("volume/gce", "spec.volumes.persistentDisk", "spec.volumes.gcePersistentDisk"),
];
const PROJECTED: &str = "spec.volumes.projected";

/// Limpet's errors about the manifest, without those about unsupported fields.
fn refused_fields(pod: &Value) -> BTreeSet<String> {
    let read = manifest::read(pod.to_string().as_bytes(), "case.json", SourceKind::File, "n");
    let limpets_own = [Reason::Unsupported, Reason::NeedsApiserver];
    let errors = read.faults.into_iter().filter(|fault| fault.severity == Severity::Error);
    errors.filter(|fault| !limpets_own.contains(&fault.reason)).map(|fault| outline(&fault.path)).collect()
}

/// A path without indices and keys.
fn outline(path: &str) -> String {
    let mut depth = 0;
    path.chars()
        .filter(|c| {
            depth += i32::from(*c == '[');
            let keep = depth == 0;
            depth -= i32::from(*c == ']');
            keep
        })
        .collect()
}

fn manifest_of(case: &Case) -> Value {
    let mut pod = corpus::base().unwrap();
    corpus::apply(&mut pod, &case.patch);
    pod
}

#[test]
fn every_case_has_an_answer_and_every_answer_a_case() {
    let (cases, answers) = (corpus::cases().unwrap(), Answers::read().unwrap());
    assert!(cases.len() >= 300, "{}", cases.len());
    let asked: BTreeSet<&String> = cases.iter().map(|case| &case.id).collect();
    assert_eq!(asked, answers.cases.keys().collect(), "run: cargo xtask corpus");
    for case in &cases {
        let accepted = matches!(answers.cases[&case.id], Answer::Object(_));
        assert_eq!(accepted, case.good, "{}: the author thought otherwise than the apiserver", case.id);
    }
}

#[test]
fn limpets_verdict_is_the_apiservers() {
    let answers = Answers::read().unwrap();
    let mut wrong = Vec::new();
    for case in corpus::cases().unwrap() {
        let fields = refused_fields(&manifest_of(&case));
        let on_purpose = VERDICTS.iter().any(|(id, _)| *id == case.id);
        match &answers.cases[&case.id] {
            Answer::Object(_) if fields.is_empty() == on_purpose => {
                wrong.push(format!("{}: accepted by the apiserver; limpet refuses {fields:?}", case.id));
            }
            Answer::Refused(theirs) if fields.is_empty() != on_purpose => {
                wrong.push(format!("{}: refused by the apiserver for {theirs:?}; limpet accepts it", case.id));
            }
            Answer::Refused(theirs) if !theirs.is_empty() && !on_purpose => {
                let theirs: BTreeSet<String> = theirs.iter().map(|field| renamed(&case.id, &outline(field))).collect();
                if fields != theirs {
                    wrong.push(format!("{}:\n  apiserver {theirs:?}\n  limpet    {fields:?}", case.id));
                }
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// Limpet's name of a field the apiserver names; an apiserver name that ends in a dot is a prefix.
fn renamed(case: &str, field: &str) -> String {
    let rename = |(_, theirs, ours): &(&str, &str, &str)| match field.strip_prefix(theirs) {
        Some(_) if theirs.ends_with('.') => Some((*ours).to_owned()),
        Some(rest) if rest.is_empty() || rest.starts_with('.') => Some(format!("{ours}{rest}")),
        _ => None,
    };
    FIELDS.iter().filter(|(id, ..)| case.starts_with(id)).find_map(rename).unwrap_or_else(|| field.to_owned())
}

#[test]
fn limpets_defaults_are_the_apiservers() {
    let answers = Answers::read().unwrap();
    let mut wrong = Vec::new();
    for case in corpus::cases().unwrap() {
        let Answer::Object(changes) = &answers.cases[&case.id] else { continue };
        let mut theirs = answers.base.clone();
        corpus::apply(&mut theirs, &case.patch);
        corpus::change(&mut theirs, changes);
        let (pod, faults) = decode::decode(&manifest_of(&case));
        let mut pod = pod.unwrap_or_else(|| panic!("{}: {faults:?}", case.id));
        default::default(&mut pod);
        let ours = serde_json::to_value(&pod).unwrap();
        let mut differences = Vec::new();
        for part in ["spec", "metadata"] {
            compare(&ours[part], &theirs[part], &format!("/{part}"), &mut differences);
        }
        let on_purpose = |at: &str| OBJECTS.iter().any(|(id, path, _)| *id == case.id && at.starts_with(path));
        differences.retain(|difference| !difference.starts_with("/metadata/name") && !on_purpose(difference));
        wrong.extend(differences.into_iter().map(|difference| format!("{}: {difference}", case.id)));
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// Records where two objects differ. Empty values that Go omits equal absent ones. Quantities are compared as
/// amounts, which the apiserver rounds up to thousandths.
fn compare(ours: &Value, theirs: &Value, at: &str, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(limpet), Value::Object(other)) => {
            let keys: BTreeSet<&String> = limpet.keys().chain(other.keys()).collect();
            for key in keys {
                let (limpet, other) = (limpet.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null));
                compare(limpet, other, &format!("{at}/{key}"), differences);
            }
        }
        (Value::Array(limpet), Value::Array(other)) if limpet.len() == other.len() => {
            for (index, (limpet, other)) in limpet.iter().zip(other).enumerate() {
                compare(limpet, other, &format!("{at}/{index}"), differences);
            }
        }
        (Value::String(limpet), Value::String(other)) if same_amount(limpet, other, at) => {}
        (limpet, other)
            if limpet == other
                || (other.is_null() && is_zero(limpet, at))
                || (limpet.is_null() && is_zero(other, at)) => {}
        (limpet, other) => differences.push(format!("{at}: limpet {limpet}, apiserver {other}")),
    }
}

/// Whether Go omits this value, or writes it although it is the default.
fn is_zero(value: &Value, at: &str) -> bool {
    *value == Value::Bool(false)
        || *value == 0
        || *value == ""
        || (*value == "0" && at.ends_with("/divisor"))
        || value.as_array().is_some_and(Vec::is_empty)
}

fn same_amount(limpet: &str, other: &str, at: &str) -> bool {
    let paths = ["/limits/", "/requests/", "/overhead/", "/sizeLimit", "/divisor"];
    let milli = |text: &str| quantity::parse(text).map(quantity::Amount::milli);
    paths.iter().any(|path| at.contains(path)) && milli(limpet).is_ok() && milli(limpet) == milli(other)
}
