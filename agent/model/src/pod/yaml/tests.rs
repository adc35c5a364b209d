#![allow(clippy::unwrap_used)]

use serde_json::json;

use crate::pod::yaml::*;

fn scalar(text: &str) -> Value {
    documents(format!("k: {text}\n").as_bytes()).0.remove(0).value["k"].clone()
}

#[test]
fn scalars_are_read_as_by_kubelet() {
    let cases = [
        ("0644", json!(420)),
        ("0o644", json!(420)),
        ("-0644", json!(-420)),
        ("007", json!(7)),
        ("089", json!(89)),
        ("080", json!(80)),
        ("yes", json!(true)),
        ("on", json!(true)),
        ("True", json!(true)),
        ("y", json!(true)),
        ("no", json!(false)),
        ("off", json!(false)),
        ("n", json!(false)),
        ("'yes'", json!("yes")),
        ("~", json!(null)),
        ("Null", json!(null)),
        ("", json!(null)),
        ("1.10", json!(1.1)),
        ("1e3", json!(1000)),
        ("1.0", json!(1)),
        ("1_000", json!(1000)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("2024-01-01", json!("2024-01-01")),
        ("12:30:45", json!("12:30:45")),
        ("1:30", json!("1:30")),
        ("!!binary aGk=", json!("hi")),
    ];
    for (text, value) in cases {
        assert_eq!(scalar(text), value, "{text}");
    }
}

#[test]
fn documents_merge_keys_marks_and_numbers_as_keys() {
    let read = |text: &str| -> Vec<Value> {
        documents(text.as_bytes()).0.into_iter().map(|document| document.value).collect()
    };
    assert_eq!(
        read("b: &b {x: 1, y: 2}\nc:\n  <<: *b\n  y: 3"),
        [json!({"b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}})]
    );
    assert_eq!(read("\u{feff}a: 1\r\nb: 2\r\n"), [json!({"a": 1, "b": 2})]);
    assert_eq!(read("1: a\ntrue: b\n"), [json!({"1": "a", "true": "b"})]);
    assert_eq!(read("# only\n"), Vec::<Value>::new());
    assert_eq!(read("---\n---\na: 1\n---\nb: 2\n"), [json!({"a": 1}), json!({"b": 2})]);
    assert_eq!(read("{\"a\": [1, {\"b\": null}]}"), [json!({"a": [1, {"b": null}]})]);
}

#[test]
fn every_field_has_its_position() {
    let text = b"spec:\n  containers:\n  - name: a\n    image: b\n    labels: {c: d, e.f/g: h}\n";
    let document = documents(text).0.remove(0);
    assert_eq!(document.position("spec.containers[0].image"), Some((4, 5)));
    assert_eq!(document.position("spec.containers[0].image.tag"), Some((4, 5)), "the nearest one above");
    assert_eq!(document.position("metadata"), None);
    assert_eq!(document.position("spec.containers[0].labels[c]"), Some((5, 14)), "a key in brackets");
    assert_eq!(document.position("spec.containers[0].labels[e.f/g]"), Some((5, 20)));
}

#[test]
fn invalid_yaml_is_one_fault_with_its_position() {
    for (text, line, word) in [("a:\n\tb: 1\n", 2, "tabs"), ("a: .inf\n", 1, "non-finite"), ("a: [1\n", 1, "bracket")] {
        let (read, faults) = documents(text.as_bytes());
        assert!(read.is_empty() && faults.len() == 1, "{text:?}: {faults:?}");
        assert_eq!(faults[0].position.map(|(line, _)| line), Some(line), "{text:?}: {}", faults[0]);
        assert!(faults[0].message.contains(word), "{text:?}: {}", faults[0]);
    }
    let first = |text: &[u8]| documents(text).1.remove(0).message;
    assert!(first(b"a: \xff").contains("UTF-8"));
    assert!(!first("[".repeat(1000).as_bytes()).is_empty());
    assert!(first(&vec![b' '; MAX_BYTES + 1]).contains("10 MiB"));
}

#[test]
fn a_duplicate_key_is_reported_with_its_path() {
    let (read, faults) = documents(b"a: 1\nb:\n- c: 1\n  d: 2\n  c: 3\na: 2\n");
    assert!(faults.is_empty(), "{faults:?}");
    let duplicates: Vec<_> = read[0].duplicates.iter().map(|fault| (fault.path.as_str(), fault.position)).collect();
    assert_eq!(duplicates, [("b[0].c", Some((5, 3))), ("a", Some((6, 1)))]);
    assert!(
        documents(b"m: &m {a: 1}\nn: {<<: *m, a: 2}\n").0[0].duplicates.is_empty(),
        "own keys win over merged ones"
    );
}

#[test]
fn a_broken_document_does_not_affect_the_others() {
    let text = "a: 1\n---\nb: [\n--- # third\nc: 3\nd: 4\n---\ne:\n\tg: 5\n---\nf: |\n  x\n";
    let (read, faults) = documents(text.as_bytes());
    assert_eq!(
        read.iter().map(|document| &document.value).collect::<Vec<_>>(),
        [&json!({"a": 1}), &json!({"c": 3, "d": 4}), &json!({"f": "x\n"})]
    );
    assert_eq!(read[1].position("d"), Some((6, 1)), "lines count from the beginning of the file");
    let lines: Vec<_> = faults.iter().map(|fault| fault.position.map(|(line, _)| line)).collect();
    assert_eq!(lines, [Some(3), Some(9)]);
}

#[test]
fn an_escaped_single_quote_in_double_quotes_is_a_single_quote() {
    let text = "a: [sh, \"echo \\\"A=\\'b\\'\\nB=\\\\\\\"\"]\nb: 'c\\'\nc: \"\\'\"\nd: x\\'y\n";
    let (documents, faults) = documents(text.as_bytes());
    assert!(faults.is_empty(), "{faults:?}");
    let expected = serde_json::json!({ "a": ["sh", "echo \"A='b'\nB=\\\""], "b": "c\\", "c": "'", "d": "x\\'y" });
    assert_eq!(documents[0].value, expected);
    let (_, faults) = super::documents(b"a: 1\nb: \"\\q\"\n");
    assert_eq!(faults[0].position.map(|(line, _)| line), Some(2), "{faults:?}");
    let many = "- \"\\'\"\n".repeat(super::MAX_ESCAPED_QUOTES + 1);
    assert_eq!(super::documents(many.as_bytes()).1.len(), 1, "bounded");
}
