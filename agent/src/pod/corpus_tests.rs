//! The corpus: of every manifest in it limpet says what a real apiserver said (`cargo xtask corpus` asked it), and makes
//! the same object of it. What differs on purpose stands here with its reason.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use limpet_tests::corpus::{self, Answer, Answers, Case};
use serde_json::Value;

use super::{Reason, Severity, decode, default, manifest, quantity};
use crate::source::SourceKind;

/// Cases on whose verdict limpet differs.
const VERDICTS: &[(&str, &str)] = &[
    ("pod/nodeName in capitals", "the node writes its own name there"),
    ("security/root and no root", "kubelet takes it and never starts it; limpet says so at once"),
    ("volume/hostPath that is relative", "relative to what? kubelet takes its own working directory"),
];

/// Places of objects where limpet differs.
const OBJECTS: &[(&str, &str, &str)] = &[];

/// Fields the apiserver calls otherwise than they are written, and what limpet calls them.
const FIELDS: &[(&str, &str)] = &[];

/// Limpet's errors about the manifest, without those about what it does not do yet.
fn refused_fields(pod: &Value) -> BTreeSet<String> {
    let read = manifest::read(pod.to_string().as_bytes(), "case.json", SourceKind::File, "n");
    let own = [Reason::Unsupported, Reason::NeedsApiserver];
    let errors = read.faults.into_iter().filter(|fault| fault.severity == Severity::Error);
    errors.filter(|fault| !own.contains(&fault.reason)).map(|fault| outline(&fault.path)).collect()
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
fn limpet_judges_as_the_apiserver() {
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
                let theirs: BTreeSet<String> = theirs.iter().map(|field| renamed(&outline(field))).collect();
                if fields != theirs {
                    wrong.push(format!("{}:\n  apiserver {theirs:?}\n  limpet    {fields:?}", case.id));
                }
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

fn renamed(field: &str) -> String {
    FIELDS.iter().find(|(theirs, _)| *theirs == field).map_or(field, |(_, ours)| ours).to_owned()
}

#[test]
fn limpet_fills_in_what_the_apiserver_fills_in() {
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
        let on_purpose = |at: &str| OBJECTS.iter().any(|(id, place, _)| *id == case.id && at.starts_with(place));
        differences.retain(|difference| !difference.starts_with("/metadata/name") && !on_purpose(difference));
        wrong.extend(differences.into_iter().map(|difference| format!("{}: {difference}", case.id)));
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// Notes where two objects differ. What Go leaves out because it is empty is the same as absent; quantities are
/// compared as amounts, which the apiserver rounds up to thousandths.
fn compare(ours: &Value, theirs: &Value, at: &str, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(own), Value::Object(other)) => {
            let keys: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
            for key in keys {
                let (own, other) = (own.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null));
                compare(own, other, &format!("{at}/{key}"), differences);
            }
        }
        (Value::Array(own), Value::Array(other)) if own.len() == other.len() => {
            for (index, (own, other)) in own.iter().zip(other).enumerate() {
                compare(own, other, &format!("{at}/{index}"), differences);
            }
        }
        (Value::String(own), Value::String(other)) if same_amount(own, other, at) => {}
        (own, other) if own == other || (other.is_null() && is_zero(own)) || (own.is_null() && is_zero(other)) => {}
        (own, other) => differences.push(format!("{at}: limpet {own}, apiserver {other}")),
    }
}

fn is_zero(value: &Value) -> bool {
    *value == Value::Bool(false)
        || *value == Value::from(0)
        || *value == Value::from("")
        || value.as_array().is_some_and(Vec::is_empty)
}

fn same_amount(own: &str, other: &str, at: &str) -> bool {
    let places = ["/limits/", "/requests/", "/overhead/", "/sizeLimit", "/divisor"];
    let milli = |text: &str| quantity::parse(text).map(quantity::Amount::milli);
    places.iter().any(|place| at.contains(place)) && milli(own).is_ok() && milli(own) == milli(other)
}
