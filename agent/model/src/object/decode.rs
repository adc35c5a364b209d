//! Decodes a document into an object, as strictly as an apiserver.
//!
//! Written by hand, because the errors of a generic decoder quote the wrong value, which must not happen to a Secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::object::metadata::{key, metadata};
use crate::object::{Entry, ObjectKind, ObjectRecord, SecretBytes, local_claim, local_service, workload};
use crate::pod::{Fault, FaultList, FieldValidation, Reason};

/// Kubernetes' limit for all values of one object together.
const MAX_DATA: usize = 1 << 20;
const MAX_KEY: usize = 253;
const OPAQUE: &str = "Opaque";
const TOKEN: &str = "kubernetes.io/service-account-token";
const KEY_RULE: &str = "letters, digits, -, _ and ., at most 253 characters, not beginning with ..";

/// The keys that a Secret of each of Kubernetes' own types requires: all of them (`true`) or any one.
const REQUIRED_KEYS: [(&str, &[&str], bool); 5] = [
    ("kubernetes.io/basic-auth", &["username", "password"], false),
    ("kubernetes.io/dockercfg", &[".dockercfg"], true),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"], true),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"], true),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"], true),
];

/// Decodes a ConfigMap or Secret: the object, unless it has an error, and all faults.
pub fn decode(value: &Value, kind: ObjectKind, origin: Arc<str>) -> (Option<ObjectRecord>, Vec<Fault>) {
    let (record, faults) = read(value, kind, origin, FieldValidation::Strict);
    (record, faults.finish())
}

/// The same as [`decode`], for one document among others.
pub(crate) fn read(
    value: &Value,
    kind: ObjectKind,
    origin: Arc<str>,
    validation: FieldValidation,
) -> (Option<ObjectRecord>, FaultList) {
    let mut faults = FaultList::default();
    let Some(document) = value.as_object() else {
        faults.push(Fault::error("", "must be a map"));
        return (None, faults);
    };
    unknown_fields(document, kind, &mut faults);
    let metadata = metadata(document, &mut faults);
    faults.relax(validation);
    let uid = Arc::from(metadata.uid.as_deref().unwrap_or_default());
    let key = key(metadata, kind, &mut faults);
    let immutable = flag(document, "immutable", &mut faults);
    let data = match kind {
        ObjectKind::ConfigMap => config_map_data(document, &mut faults),
        _ => secret_data(document, &mut faults),
    };
    let size: usize = data.values().map(|entry| entry.bytes.len()).sum();
    if size > MAX_DATA {
        faults.push(Fault::error("data", format!("{size} bytes exceed the {MAX_DATA} that an object may have")));
    }
    let secret_type = match kind {
        _ if kind != ObjectKind::Secret => "",
        _ => secret_type(document, &data, &mut faults),
    };
    let secret_type = Arc::from(secret_type);
    let record =
        ObjectRecord { key, origin, uid, immutable, secret_type, data, workload: None, claim: None, service: None };
    let accepted = faults.errors() == 0;
    (accepted.then_some(record), faults)
}

/// Decodes an object stored as [`ObjectRecord::manifest`]; `None` if `value` is of another kind.
pub fn restore(value: &Value, origin: &str) -> Option<Result<ObjectRecord, Vec<Fault>>> {
    // A claim of a manifest has a spec, and what an apiserver's is bound to has none.
    let is_of_apiserver = |kind: &ObjectKind| value["kind"] == kind.as_str() && value.get("spec").is_none();
    if let Some(kind) = ObjectKind::OF_APISERVER.into_iter().find(is_of_apiserver) {
        return Some(ObjectRecord::restore(value, kind, origin));
    }
    let kind = ObjectKind::from_name(value["kind"].as_str()?)?;
    if kind == ObjectKind::PersistentVolumeClaim {
        let restored = local_claim::restore(value);
        return Some(restored.map(|restored| ObjectRecord::of_claim(restored, &Arc::from(origin))));
    }
    if kind == ObjectKind::Service {
        let restored = local_service::restore(value);
        return Some(restored.map(|restored| ObjectRecord::of_service(restored, &Arc::from(origin))));
    }
    if kind.is_workload() {
        let restored = workload::restore(value, kind);
        return Some(restored.map(|restored| ObjectRecord::of_workload(restored, &Arc::from(origin))));
    }
    let (record, faults) = decode(value, kind, Arc::from(origin));
    Some(record.ok_or(faults))
}

/// Decodes an object as an apiserver stores it. What the apiserver has checked is not checked again: only name and
/// UID of the metadata matter, and a Secret that holds a token is treated like any other.
///
/// # Errors
///
/// It is not of that kind.
pub fn from_apiserver(object: &Value, kind: ObjectKind, origin: &str) -> Result<ObjectRecord, Vec<Fault>> {
    let mut value = object.clone();
    let metadata = &object["metadata"];
    let (name, namespace, uid) = (&metadata["name"], &metadata["namespace"], &metadata["uid"]);
    value["metadata"] = serde_json::json!({ "name": name, "namespace": namespace, "uid": uid });
    if value["type"] == TOKEN {
        value["type"] = Value::from(OPAQUE);
    }
    let (record, faults) = decode(&value, kind, Arc::from(origin));
    record.ok_or(faults)
}

fn unknown_fields(document: &Map<String, Value>, kind: ObjectKind, faults: &mut FaultList) {
    let of_kind: &[&str] = match kind {
        ObjectKind::ConfigMap => &["data", "binaryData", "immutable"],
        ObjectKind::Secret => &["data", "stringData", "immutable", "type"],
        _ => &["data"],
    };
    let known = || of_kind.iter().chain(&["apiVersion", "kind", "metadata"]);
    for field in document.keys().filter(|field| !known().any(|known| known == field)) {
        let near = known().find(|known| strsim::jaro_winkler(known, field) > 0.85);
        let fault = Fault::error(field, "no such field").because(Reason::Strict);
        faults.push(match near {
            Some(near) => fault.with_remedy(format!("did you mean {near}?")),
            None => fault.with_remedy(format!("a {} has {}", kind.as_str(), of_kind.join(", "))),
        });
    }
}

fn flag(document: &Map<String, Value>, field: &str, faults: &mut FaultList) -> bool {
    match document.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(other) => {
            faults.push(Fault::error(field, format!("must be true or false, not {}", type_name(other))));
            false
        }
    }
}

fn config_map_data(document: &Map<String, Value>, faults: &mut FaultList) -> BTreeMap<String, Entry> {
    let mut data = values(document, "data", false, faults);
    for (key, entry) in values(document, "binaryData", true, faults) {
        if data.insert(key.clone(), Entry { binary: true, ..entry }).is_some() {
            faults.push(Fault::error(path("binaryData", &key), "is in data too; a key belongs in only one of them"));
        }
    }
    data
}

/// `stringData` wins over `data`, as an apiserver merges them.
fn secret_data(document: &Map<String, Value>, faults: &mut FaultList) -> BTreeMap<String, Entry> {
    let mut data = values(document, "data", true, faults);
    data.extend(values(document, "stringData", false, faults));
    data
}

/// Reads one map of values. Wrong ones are omitted and reported as faults.
fn values(
    document: &Map<String, Value>,
    field: &str,
    encoded: bool,
    faults: &mut FaultList,
) -> BTreeMap<String, Entry> {
    let map = match document.get(field) {
        None | Some(Value::Null) => return BTreeMap::new(),
        Some(Value::Object(map)) => map,
        Some(other) => {
            faults.push(Fault::error(field, format!("must be a map, not {}", type_name(other))));
            return BTreeMap::new();
        }
    };
    let mut values = BTreeMap::new();
    for (key, value) in map {
        if !is_key(key) {
            faults.push(Fault::error(path(field, key), format!("{key:?} is not a valid key")).with_remedy(KEY_RULE));
        }
        match bytes(value, encoded) {
            Ok(bytes) => drop(values.insert(key.clone(), Entry { bytes: SecretBytes::new(bytes), binary: false })),
            Err(fault) => faults.push(Fault { path: path(field, key), ..fault }),
        }
    }
    values
}

fn bytes(value: &Value, encoded: bool) -> Result<Vec<u8>, Fault> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if encoded => {
            let text: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
            let remedy = "encode it (base64 -w0), or put the plain text under stringData of a Secret";
            STANDARD.decode(text).map_err(|_| Fault::error("", "is not base64").with_remedy(remedy))
        }
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        other => Err(Fault::error("", format!("must be a string, not {}", type_name(other))).with_remedy("quote it")),
    }
}

fn secret_type<'a>(
    document: &'a Map<String, Value>,
    data: &BTreeMap<String, Entry>,
    faults: &mut FaultList,
) -> &'a str {
    let kind = match document.get("type") {
        None | Some(Value::Null) => OPAQUE,
        Some(Value::String(text)) if text.is_empty() => OPAQUE,
        Some(Value::String(text)) => text,
        Some(other) => {
            faults.push(Fault::error("type", format!("must be a string, not {}", type_name(other))));
            OPAQUE
        }
    };
    if kind == TOKEN {
        let fault = Fault::error("type", format!("{TOKEN}: only an apiserver issues tokens of service accounts"));
        faults.push(fault.with_remedy("write what the pod needs as a Secret of type Opaque"));
    }
    let rule = REQUIRED_KEYS.iter().find(|(name, ..)| *name == kind);
    if let Some((_, keys, all)) = rule {
        let missing: Vec<&str> = keys.iter().copied().filter(|key| !data.contains_key(*key)).collect();
        if !missing.is_empty() && (*all || missing.len() == keys.len()) {
            let conjunction = if *all { " and " } else { " or " };
            faults.push(Fault::error("data", format!("a Secret of type {kind} needs {}", missing.join(conjunction))));
        }
    }
    if matches!(kind, "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson") {
        for (key, entry) in data.iter().filter(|(key, _)| key.starts_with(".docker")) {
            if serde_json::from_slice::<serde::de::IgnoredAny>(entry.bytes.expose()).is_err() {
                faults.push(Fault::error(path("data", key), "is not a JSON document"));
            }
        }
    }
    kind
}

/// Kubernetes' rule for the keys of both kinds: each may become a file name.
fn is_key(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(plain) && key != "." && !key.starts_with("..")
}

fn path(field: &str, key: &str) -> String {
    crate::pod::field_path(field, key)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

#[cfg(test)]
mod tests;
