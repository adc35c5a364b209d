//! Decodes a value into a Pod, strictly: an unknown field and a value of the wrong type are faults with their path.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::pod::strict::{self, Step, TypeError, UnknownField};
use crate::pod::{Fault, FaultList, Severity};

/// Wrong types reported per document; an author fixes them one by one anyway.
const MAX_TYPE_FAULTS: usize = 20;

/// Decodes a Pod. Values of the wrong type are removed from the Pod, so that the rest can be validated as well.
pub(crate) fn decode(value: &Value) -> (Option<Pod>, FaultList) {
    let mut value = Cow::Borrowed(value);
    let (mut wrong, mut known) = (FaultList::default(), Vec::new());
    loop {
        let (read, unknown) = strict::read(value.as_ref());
        let type_error = match read {
            Ok(pod) => {
                wrong.extend(unknown.first.into_iter().map(unknown_field));
                wrong.leave_out(Severity::Error, unknown.more);
                return (Some(pod), wrong);
            }
            Err(type_error) => type_error,
        };
        let seen = known.contains(&type_error.path);
        let gone = clear(value.to_mut(), &type_error.steps);
        known.push(type_error.path.clone());
        wrong.push(type_fault(type_error));
        if seen || !gone || known.len() == MAX_TYPE_FAULTS {
            return (None, wrong);
        }
    }
}

/// Decodes a Pod that limpet wrote: unknown fields are those of a newer version.
///
/// # Errors
/// What is wrong, and where.
pub fn from_value(value: &Value) -> Result<Pod, TypeError> {
    strict::read(value).0
}

fn unknown_field(unknown: UnknownField) -> Fault {
    let suggestion = unknown.suggestion().unwrap_or_default();
    Fault::error(unknown.path, "no such field").with_remedy(suggestion)
}

fn type_fault(type_error: TypeError) -> Fault {
    Fault::error(type_error.path, type_message(&type_error.error.to_string()))
}

/// serde's message in limpet's form.
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

/// Removes the value at `steps`. False if it does not exist.
fn clear(value: &mut Value, steps: &[Step]) -> bool {
    let Some((last, around)) = steps.split_last() else { return false };
    let parent = around.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Name(name), Value::Object(map)) => map.get_mut(name),
        (Step::Item(index), Value::Array(items)) => items.get_mut(*index),
        _ => None,
    });
    match (last, parent) {
        (Step::Name(name), Some(Value::Object(map))) => map.remove(name).is_some(),
        // Removing an item would change the path of every later one: it becomes an empty object instead.
        (Step::Item(index), Some(Value::Array(items))) => {
            let item = items.get_mut(*index).filter(|item| !item.is_object());
            item.map(|item| *item = Value::Object(serde_json::Map::new())).is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use crate::pod::decode::*;

    fn faults(value: &Value) -> Vec<String> {
        decode(value).1.finish().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_fields_are_reported_with_a_suggestion() {
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
            json!({"metadata": {"labels": {"a.b/c": 1}}, "spec": {"hostNetwork": "yes", "containers": [{"name": 5}]}});
        let faults = faults(&value);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(
            faults[0].starts_with("metadata.labels[a.b/c]: must be")
                && faults.iter().any(|fault| fault.contains("spec.hostNetwork: must be"))
        );
    }

    #[test]
    fn a_number_is_a_quantity() {
        let value =
            json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]}});
        let (pod, faults) = decode(&value);
        let faults = faults.finish();
        assert!(faults.is_empty(), "{faults:?}");
        let spec = pod.unwrap().spec.unwrap();
        assert_eq!(spec.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap()["cpu"].0, "1");
    }
}
