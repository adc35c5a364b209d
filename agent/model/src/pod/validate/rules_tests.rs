//! Every rule has a manifest in the corpus that violates it, and every rejected field has a valid manifest that uses
//! it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use limpet_tests::corpus::{self, Case};
use serde_json::Value;

use super::field::fired;
use crate::manifest::read;
use crate::pod::Severity;
use crate::source::SourceKind;

/// Rules that no manifest rejected by the apiserver can violate, by the text of their line, and why.
const UNBROKEN: &[(&str, &str)] = &[
    ("runAsUser is 0, which is root", "limpet's own"),
    ("MAX_CONTAINERS", "limpet's own"),
    ("&draft.uid", "an apiserver assigns UIDs, a node accepts given ones"),
    ("metadata.generation", "an apiserver counts generations itself"),
    ("&claim.claim_name, detail", "the pod's name has the node's in it, and so have its claims"),
    ("must specify a volume type", "a volume of nothing is an emptyDir by default"),
    ("&source.path, \"must be an absolute path\"", "a relative hostPath is refused by limpet alone"),
    ("None => faults.required(&at_seconds", "a token lasts an hour by default"),
    ("text(&get.path)", "a path is / by default"),
    ("HTTP2", "the apiserver drops the field: its feature is alpha"),
    ("at_group", "the same"),
    ("\"terminationGracePeriodSeconds\"), grace", "less than nothing is a second by default"),
];

/// Fields that no valid manifest has, including all below them, and why.
const NEVER_GOOD: &[(&str, &str)] = &[
    ("spec.containers.readinessProbe.terminationGracePeriodSeconds", "a readiness probe ends nothing"),
    ("spec.ephemeralContainers", "they are added to pods that run"),
    ("spec.initContainers.resizePolicy.restartPolicy", "only a container that goes on is resized"),
    ("spec.topologySpreadConstraints.{topologyKey, whenUnsatisfiable}", "two fields that are one key together"),
    ("spec.overhead", "its amounts are validated as limits, under that name"),
    ("spec.resources.claims", "the pod's own claims stand in spec.resourceClaims"),
    ("spec.volumes.ephemeral.volumeClaimTemplate.metadata.name", "the claim is named after the pod"),
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(sources(&path)),
            false => files.push(path),
        }
    }
    files.retain(|path| !path.ends_with("field.rs") && !path.to_string_lossy().ends_with("tests.rs"));
    files
}

/// Where the rules report their faults: file below the crate, line, and the line's text.
fn rules() -> Vec<(String, u32, String)> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let root = Path::new(&root);
    let mut files = sources(&root.join("src/pod/validate"));
    files.push(root.join("src/pod/validate.rs"));
    let mut rules = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        for (index, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let method = line.split("faults.").nth(1).and_then(|rest| rest.split_once('(')).map(|(method, _)| method);
            if method.is_some_and(|method| !["error_count", "finish", "push"].contains(&method)) {
                rules.push((name.clone(), u32::try_from(index).unwrap() + 1, line.trim().to_owned()));
            }
        }
    }
    rules
}

fn manifest(case: &Case) -> Value {
    let mut pod = corpus::base().unwrap();
    corpus::apply(&mut pod, &case.patch);
    pod
}

/// The rejected fields of a manifest, without indices and keys; misspelt ones are omitted.
fn refused(pod: &Value) -> BTreeSet<String> {
    let read = read(pod.to_string().as_bytes(), "case.json", SourceKind::File, "n");
    let errors = read.faults.into_iter().filter(|fault| fault.severity == Severity::Error);
    let fields = errors.filter(|fault| fault.message != "no such field");
    fields.map(|fault| without_keys(&fault.path.split(['[', ']']).step_by(2).collect::<String>())).collect()
}

/// Maps whose keys are not fields.
const FREE: [&str; 7] = ["labels", "annotations", "limits", "requests", "overhead", "nodeSelector", "matchLabels"];

fn without_keys(path: &str) -> String {
    let keyed = FREE.iter().filter_map(|map| Some(path.find(&format!(".{map}."))? + map.len() + 1)).min();
    path[..keyed.unwrap_or(path.len())].to_owned()
}

#[test]
fn every_rule_is_violated_by_some_manifest() {
    fired::take();
    for case in corpus::cases().unwrap().iter().filter(|case| !case.good) {
        refused(&manifest(case));
    }
    let fired = fired::take();
    let broken =
        |(file, line, _): &(String, u32, String)| fired.iter().any(|(at, on)| at.ends_with(file) && on == line);
    let excused = |(_, _, text): &(String, u32, String)| UNBROKEN.iter().any(|(rule, _)| text.contains(rule));
    let rules = rules();
    assert!(rules.len() > 200, "{} rules are found", rules.len());
    let unbroken: Vec<String> = (rules.iter().filter(|rule| !broken(rule) && !excused(rule)))
        .map(|(file, line, text)| format!("{file}:{line}: {text}"))
        .collect();
    assert!(unbroken.is_empty(), "{} of {} rules:\n{}", unbroken.len(), rules.len(), unbroken.join("\n"));
}

/// Every field a value has, without indices and keys.
fn fields(value: &Value, at: &str, paths: &mut BTreeSet<String>) {
    paths.insert(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let below = match FREE.iter().any(|map| at.ends_with(map)) {
                    true => at.to_owned(),
                    false => format!("{at}.{key}"),
                };
                fields(value, below.trim_start_matches('.'), paths);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, at, paths)),
        _ => {}
    }
}

#[test]
fn every_rejected_field_is_in_some_valid_manifest() {
    let cases = corpus::cases().unwrap();
    let mut good = BTreeSet::new();
    cases.iter().filter(|case| case.good).for_each(|case| fields(&manifest(case), "", &mut good));
    let bad: BTreeSet<String> =
        cases.iter().filter(|case| !case.good).flat_map(|case| refused(&manifest(case))).collect();
    let missing: Vec<&String> = (bad.iter())
        .filter(|field| !good.contains(*field) && !NEVER_GOOD.iter().any(|(never, _)| field.starts_with(never)))
        .collect();
    assert!(missing.is_empty(), "{} of {}: {missing:#?}", missing.len(), bad.len());
}
