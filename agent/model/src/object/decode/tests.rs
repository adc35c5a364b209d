#![allow(clippy::unwrap_used)]
//! What is accepted and what is rejected, and that no fault quotes a value.

use serde_json::json;

use crate::object::KEYS_ANNOTATION;
use crate::object::decode::*;

fn read(value: &Value) -> (Option<ObjectRecord>, Vec<String>) {
    let kind = ObjectKind::from_name(value["kind"].as_str().unwrap()).unwrap();
    let (record, faults) = decode(value, kind, Arc::from("f.yaml"));
    (record, faults.iter().map(ToString::to_string).collect())
}

fn object(kind: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = json!("v1");
    rest["kind"] = json!(kind);
    if rest["metadata"].is_null() {
        rest["metadata"] = json!({"name": "o"});
    }
    rest
}

fn text<'a>(record: &'a ObjectRecord, key: &str) -> &'a str {
    record.data[key].bytes.expose_text().unwrap()
}

#[test]
fn a_config_map() {
    let value = object(
        "ConfigMap",
        json!({"data": {"a": "1", "b.conf": "x\n", "empty": null},
        "binaryData": {"bin": "/wA="}, "immutable": true, "metadata": {"name": "o", "namespace": "n"}}),
    );
    let (record, faults) = read(&value);
    assert_eq!(faults, Vec::<String>::new());
    let record = record.unwrap();
    assert_eq!(record.key.to_string(), "ConfigMap n/o");
    assert!(record.immutable);
    assert_eq!((text(&record, "a"), text(&record, "b.conf"), text(&record, "empty")), ("1", "x\n", ""));
    assert_eq!(record.data["bin"].bytes.expose(), [0xff, 0]);
    assert!(record.data["bin"].binary && !record.data["a"].binary);
}

#[test]
fn string_data_wins_and_base64_may_be_folded() {
    let value = object("Secret", json!({"data": {"a": "b25l", "b": "dH\ndv\n", "c": ""}, "stringData": {"a": "uno"}}));
    let (record, faults) = read(&value);
    assert_eq!(faults, Vec::<String>::new());
    let record = record.unwrap();
    assert_eq!((text(&record, "a"), text(&record, "b"), text(&record, "c")), ("uno", "two", ""));
    assert_eq!((&*record.secret_type, record.key.to_string().as_str()), ("Opaque", "Secret default/o"));
}

#[test]
fn a_stored_object_is_restored_unchanged() {
    let secret = object("Secret", json!({"stringData": {"tls.crt": "c", "tls.key": "k"}, "type": "kubernetes.io/tls"}));
    let map = object("ConfigMap", json!({"data": {"a": "ä"}, "binaryData": {"b": "/w=="}, "immutable": true}));
    for value in [secret, map] {
        let record = read(&value).0.unwrap();
        let stored: Value = serde_json::from_slice(&record.manifest()).unwrap();
        assert_eq!(restore(&stored, "f.yaml").unwrap().unwrap(), record);
    }
    assert!(restore(&json!({"kind": "Pod"}), "f.yaml").is_none());
}

#[test]
fn faults_name_the_field_and_never_the_value() {
    let table = [
        (object("Secret", json!({"data": {"k": "hunter2!"}})), "data.k: is not base64"),
        (object("Secret", json!({"data": {"k": 4711}})), "data.k: must be a string, not a number; quote it"),
        (object("Secret", json!({"data": ["hunter2"]})), "data: must be a map, not a list"),
        (object("Secret", json!({"stringData": {"k": {"hunter2": 1}}})), "stringData.k: must be a string, not a map"),
        (
            object("Secret", json!({"stringdata": {"k": "hunter2"}})),
            "stringdata: no such field; did you mean stringData?",
        ),
        (object("Secret", json!({"type": ["hunter2"]})), "type: must be a string, not a list"),
        (object("Secret", json!({"immutable": "hunter2"})), "immutable: must be true or false, not a string"),
        (object("Secret", json!({"metadata": {"name": {"x": "hunter2"}}})), "has the wrong type"),
        (
            object("Secret", json!({"metadata": {"name": "o", "labls": {"x": "hunter2"}}})),
            "metadata.labls: no such field",
        ),
        (object("Secret", json!({"metadata": {"name": "o", "annotations": {"x": ["hunter2"]}}})), "has the wrong type"),
        (object("Secret", json!({"type": TOKEN})), "only an apiserver issues tokens"),
        (
            object("Secret", json!({"type": "kubernetes.io/tls"})),
            "data: a Secret of type kubernetes.io/tls needs tls.crt and tls.key",
        ),
        (object("Secret", json!({"type": "kubernetes.io/basic-auth"})), "needs username or password"),
        (
            object("Secret", json!({"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "hunter2"}})),
            "data[.dockercfg]: is not a JSON document",
        ),
        (object("ConfigMap", json!({"data": {"k": true}})), "data.k: must be a string, not true or false"),
        (object("ConfigMap", json!({"data": {"a": "x"}, "binaryData": {"a": ""}})), "binaryData.a: is in data too"),
        (object("ConfigMap", json!({"data": {"a/b": "x"}})), "\"a/b\" is not a valid key"),
        (object("ConfigMap", json!({"data": {"..a": "x"}})), "\"..a\" is not a valid key"),
        (object("ConfigMap", json!({"data": {"a": "x".repeat(MAX_DATA + 1)}})), "1048577 bytes exceed"),
        (
            object("ConfigMap", json!({"metadata": {"name": "A_b"}})),
            "metadata.name: \"A_b\" is not a valid name for a ConfigMap",
        ),
        (object("ConfigMap", json!({"metadata": {"generateName": "x"}})), "only an apiserver generates names"),
        (object("ConfigMap", json!({"metadata": {}})), "metadata.name: required"),
        (
            object("ConfigMap", json!({"metadata": {"name": "o", "namespace": "a.b"}})),
            "\"a.b\" is not a valid namespace",
        ),
        (object("ConfigMap", json!({"spec": {}})), "spec: no such field; a ConfigMap has data, binaryData, immutable"),
    ];
    for (value, wanted) in table {
        let (record, faults) = read(&value);
        assert!(record.is_none(), "{wanted}");
        assert!(faults.iter().any(|fault| fault.contains(wanted)), "{wanted}: {faults:?}");
        assert!(!faults.iter().any(|fault| fault.contains("hunter2")), "{faults:?}");
    }
}

#[test]
fn nothing_prints_a_value() {
    let value = object("Secret", json!({"stringData": {"k": "hunter2"}}));
    let record = read(&value).0.unwrap();
    let printed =
        format!("{record:?} {} {:?}", record.data["k"].bytes, record.data["k"].bytes.expose_text().map(str::len));
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn a_secret_as_limpet_returns_it_is_not_accepted_as_an_empty_one() {
    let shown = json!({"metadata": {"name": "o", "annotations": {KEYS_ANNOTATION: "a,b"}}});
    let (record, faults) = read(&object("Secret", shown));
    assert!(record.is_none() && faults[0].starts_with("metadata.annotations: limpet.dev/keys"), "{faults:?}");
}
