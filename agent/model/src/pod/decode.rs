//! Decodes a value into a Pod, strictly: an unknown field and a value of the wrong type are faults with their path.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::pod::strict::{self, ReadNull, Step, TypeError, UnknownField};
use crate::pod::{Fault, FaultList, Reason, Severity};

/// How many wrong types are reported per document. An author fixes them one by one anyway.
const MAX_TYPE_FAULTS: usize = 20;

/// A Pod and the value it was read from, in which nulls are replaced by the zero values that they stand for, so that
/// a list or map is the same after it was stored and read again.
pub(crate) type Decoded<'a> = (Pod, Cow<'a, Value>);

/// Decodes a Pod. Values of the wrong type are removed from the Pod, so that the rest can be validated as well.
pub(crate) fn decode(value: &Value) -> (Option<Pod>, FaultList) {
    let (decoded, faults) = decode_with_value(value);
    (decoded.map(|(pod, _)| pod), faults)
}

/// As [`decode`], with the value as it was read.
pub(crate) fn decode_with_value(value: &Value) -> (Option<Decoded<'_>>, FaultList) {
    let mut value = Cow::Borrowed(value);
    let (mut wrong, mut known) = (FaultList::default(), Vec::new());
    loop {
        let (read, unknown, nulls) = strict::read_noting_nulls(value.as_ref());
        let type_error = match read {
            Ok(pod) => {
                wrong.extend(unknown.first.into_iter().map(unknown_field));
                wrong.leave_out(Severity::Error, unknown.more);
                nulls.into_iter().for_each(|null| replace(value.to_mut(), null));
                return (Some((pod, value)), wrong);
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

/// Decodes a Pod that limpet wrote. Unknown fields are ignored, because a newer version may have written them.
///
/// # Errors
///
/// What is wrong, and where.
pub fn from_value(value: &Value) -> Result<Pod, TypeError> {
    strict::read(value).0
}

fn unknown_field(unknown: UnknownField) -> Fault {
    let suggestion = unknown.suggestion().unwrap_or_default();
    Fault::error(unknown.path, "no such field").with_remedy(suggestion).because(Reason::Strict)
}

fn type_fault(type_error: TypeError) -> Fault {
    Fault::error(type_error.path, type_message(&type_error.error.to_string()))
}

/// serde's message in limpet's form.
fn type_message(message: &str) -> String {
    match message.split_once(", expected ") {
        Some((actual, expected)) => {
            format!(
                "must be {expected}, not {}",
                actual.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ")
            )
        }
        None => message.to_owned(),
    }
}

/// Removes the value at `steps`. Returns false if it does not exist.
fn clear(value: &mut Value, steps: &[Step]) -> bool {
    let Some((last, around)) = steps.split_last() else { return false };
    match (last, at(value, around)) {
        (Step::Name(name), Some(Value::Object(map))) => map.remove(name).is_some(),
        // Removing an item would change the paths of all later ones, so it becomes null, the zero value of any type.
        (Step::Item(index), Some(Value::Array(items))) => {
            items.get_mut(*index).filter(|item| !item.is_null()).map(|item| *item = Value::Null).is_some()
        }
        _ => false,
    }
}

fn replace(value: &mut Value, null: ReadNull) {
    if let Some(element) = at(value, &null.steps) {
        *element = null.zero;
    }
}

fn at<'v>(value: &'v mut Value, steps: &[Step]) -> Option<&'v mut Value> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Name(name), Value::Object(map)) => map.get_mut(name),
        (Step::Item(index), Value::Array(items)) => items.get_mut(*index),
        _ => None,
    })
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
    fn a_null_in_a_list_or_map_is_the_zero_value_of_its_type() {
        let value = json!({
            "metadata": {"labels": {"a": null, "b": "c"}, "annotations": null},
            "spec": {"securityContext": {"supplementalGroups": [null]}, "containers": [null, {
                "name": "a", "args": ["1", null], "env": [null],
                "resources": {"requests": {"memory": null, "cpu": 1}},
            }]},
        });
        let (decoded, faults) = decode_with_value(&value);
        assert_eq!(faults.finish(), []);
        let (pod, value) = decoded.unwrap();
        assert_eq!(
            *value,
            json!({
                "metadata": {"labels": {"a": "", "b": "c"}, "annotations": null},
                "spec": {"securityContext": {"supplementalGroups": [0]}, "containers": [{}, {
                    "name": "a", "args": ["1", ""], "env": [{}],
                    "resources": {"requests": {"memory": "0", "cpu": 1}},
                }]},
            })
        );
        assert_eq!(decode(&value).0.unwrap(), pod);
        let container = &pod.spec.as_ref().unwrap().containers[1];
        assert_eq!(container.args.as_ref().unwrap(), &["1", ""]);
        assert_eq!(container.resources.as_ref().unwrap().requests.as_ref().unwrap()["memory"].0, "0");
    }

    #[test]
    fn a_wrong_item_of_a_list_is_one_fault() {
        let value = json!({"spec": {"containers": [{"name": "a", "command": ["sleep", 5, true], "env": [7]}, "b"]}});
        assert_eq!(
            faults(&value),
            [
                "spec.containers[0].command[1]: must be a string, not integer `5`",
                "spec.containers[0].command[2]: must be a string, not boolean `true`",
                "spec.containers[0].env[0]: must be EnvVar, not integer `7`",
                "spec.containers[1]: must be Container, not string \"b\"",
            ]
        );
    }

    #[test]
    fn endless_nulls_are_values_of_the_wrong_type() {
        let value = json!({"spec": {"containers": [{"args": vec![Value::Null; 20_000]}]}});
        let faults = faults(&value);
        assert_eq!(faults.len(), 1, "{faults:?}");
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
