//! A value becomes a Pod, strictly: what is not a field, and what is of the wrong type, is a fault with its path.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::yaml::join;
use super::{Fault, fields};

/// What is of the wrong type, and where.
type TypeError = serde_path_to_error::Error<serde_json::Error>;

/// Wrong types reported of one document; an author mends them one by one anyway.
const MAX_TYPE_FAULTS: usize = 20;

/// Reads a Pod. With faults of type, what was wrong is left out of the Pod, so that the rest can be judged as well.
pub(super) fn decode(value: &Value) -> (Option<Pod>, Vec<Fault>) {
    let mut value = value.clone();
    quantities_as_text(&mut value);
    let mut wrong = Vec::new();
    loop {
        let mut unknown = Vec::new();
        match read(&value, &mut unknown) {
            Ok(pod) => {
                wrong.extend(unknown.into_iter().map(unknown_field));
                return (Some(pod), wrong);
            }
            Err(error) => {
                let path = error.path().to_string();
                let fault = Fault::error(path_text(&path), type_message(&error.inner().to_string()));
                let seen = wrong.iter().any(|known: &Fault| known.path == fault.path);
                let gone = clear(&mut value, &fault.path);
                wrong.push(fault);
                if seen || !gone || wrong.len() == MAX_TYPE_FAULTS {
                    return (None, wrong);
                }
            }
        }
    }
}

/// Reads a Pod that limpet has written: fields it does not know are newer than it.
///
/// # Errors
/// What is wrong, and where.
pub(crate) fn from_value(value: &Value) -> Result<Pod, String> {
    read(value, &mut Vec::new()).map_err(|error| error.to_string())
}

/// The one place that reads the types of the Pod API: each kind of deserializer makes a copy of all that code.
fn read(value: &Value, unknown: &mut Vec<String>) -> Result<Pod, TypeError> {
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(text_of(&path));
    serde_path_to_error::deserialize(serde_ignored::Deserializer::new(value, &mut note))
}

/// kubelet takes a number where a quantity is wanted: `cpu: 1`.
fn quantities_as_text(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                match (key.as_str(), &mut *inner) {
                    ("limits" | "requests" | "overhead", Value::Object(amounts)) => {
                        amounts.values_mut().for_each(as_text)
                    }
                    ("sizeLimit" | "divisor", amount) => as_text(amount),
                    _ => quantities_as_text(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        _ => {}
    }
}

fn as_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}

fn text_of(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", text_of(parent)),
        Path::Map { parent, key } => join(&text_of(parent), key),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => text_of(parent),
    }
}

/// The root's path is `.` in the crate's words.
fn path_text(path: &str) -> String {
    if path == "." { String::new() } else { path.to_owned() }
}

fn unknown_field(path: String) -> Fault {
    let suggestion = fields::suggestion(&path);
    Fault::error(path, "no such field").with_remedy(suggestion.unwrap_or_default())
}

/// serde's words in ours.
fn type_message(message: &str) -> String {
    match message.split_once(", expected ") {
        Some((found, expected)) => {
            format!(
                "must be {expected}, not {}",
                found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ")
            )
        }
        None => message.to_owned(),
    }
}

/// Takes the value at `path` out. False when there is nothing.
fn clear(value: &mut Value, path: &str) -> bool {
    let pointer: String = path
        .split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{}", part.trim_end_matches(']').replace('~', "~0").replace('/', "~1")))
        .collect();
    let Some((parent, key)) = pointer.rsplit_once('/') else { return false };
    match value.pointer_mut(parent) {
        Some(Value::Object(map)) => map.remove(&key.replace("~1", "/").replace("~0", "~")).is_some(),
        Some(Value::Array(items)) => {
            // Taken out of its list, every later item would have another path: it becomes an empty object instead.
            let item = key.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            item.is_some_and(|item| {
                !item.is_object() && {
                    *item = Value::Object(serde_json::Map::new());
                    true
                }
            })
        }
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(value: &Value) -> Vec<String> {
        decode(value).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_fields_are_named_with_what_they_may_have_meant() {
        let value = json!({
            "spec": {"containers": [{"name": "a", "livenesProbe": {}, "qqq": 1, "volumes": []}], "volumes": null, "image": "a"},
            "metadata": {"lables": {}, "labels": {"imge": "b"}}
        });
        assert_eq!(
            faults(&value),
            [
                "metadata.lables: no such field; did you mean labels?",
                "spec.containers[0].livenesProbe: no such field; did you mean livenessProbe?",
                "spec.containers[0].qqq: no such field",
                "spec.containers[0].volumes: no such field; it is a field of spec",
                "spec.image: no such field",
            ]
        );
    }

    #[test]
    fn every_wrong_type_is_reported() {
        let value =
            json!({"metadata": {"labels": {"a": 1}}, "spec": {"hostNetwork": "yes", "containers": [{"name": 5}]}});
        let faults = faults(&value);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(
            faults[0].contains("metadata.labels")
                && faults.iter().any(|fault| fault.contains("spec.hostNetwork: must be"))
        );
    }

    #[test]
    fn a_number_is_a_quantity() {
        let value =
            json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]}});
        let (pod, faults) = decode(&value);
        assert!(faults.is_empty(), "{faults:?}");
        let spec = pod.unwrap().spec.unwrap();
        assert_eq!(spec.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap()["cpu"].0, "1");
    }
}
