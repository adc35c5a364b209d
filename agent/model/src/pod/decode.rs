//! A value becomes a Pod, strictly: what is not a field, and what is of the wrong type, is a fault with its path.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::pod::Fault;
use crate::pod::strict::{self, Misfit, Step, Unknown};

/// Wrong types reported of one document; an author mends them one by one anyway.
const MAX_TYPE_FAULTS: usize = 20;

/// Reads a Pod. With faults of type, what was wrong is left out of the Pod, so that the rest can be judged as well.
pub(crate) fn decode(value: &Value) -> (Option<Pod>, Vec<Fault>) {
    let mut value = Cow::Borrowed(value);
    let mut wrong = Vec::new();
    loop {
        let (read, unknown) = strict::read(value.as_ref());
        let misfit = match read {
            Ok(pod) => {
                wrong.extend(unknown.into_iter().map(unknown_field));
                return (Some(pod), wrong);
            }
            Err(misfit) => misfit,
        };
        let seen = wrong.iter().any(|known: &Fault| known.path == misfit.path);
        let gone = clear(value.to_mut(), &misfit.steps);
        wrong.push(type_fault(misfit));
        if seen || !gone || wrong.len() == MAX_TYPE_FAULTS {
            return (None, wrong);
        }
    }
}

/// Reads a Pod that limpet has written: fields it does not know are newer than it.
///
/// # Errors
/// What is wrong, and where.
pub fn from_value(value: &Value) -> Result<Pod, Misfit> {
    strict::read(value).0
}

fn unknown_field(unknown: Unknown) -> Fault {
    let suggestion = unknown.suggestion().unwrap_or_default();
    Fault::error(unknown.path, "no such field").with_remedy(suggestion)
}

fn type_fault(misfit: Misfit) -> Fault {
    Fault::error(misfit.path, type_message(&misfit.error.to_string()))
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

/// Takes out the value that `steps` lead to. False when there is nothing.
fn clear(value: &mut Value, steps: &[Step]) -> bool {
    let Some((last, around)) = steps.split_last() else { return false };
    let parent = around.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Name(name), Value::Object(map)) => map.get_mut(name),
        (Step::Item(index), Value::Array(items)) => items.get_mut(*index),
        _ => None,
    });
    match (last, parent) {
        (Step::Name(name), Some(Value::Object(map))) => map.remove(name).is_some(),
        // Taken out of its list, every later item would have another path: it becomes an empty object instead.
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
        assert!(faults.is_empty(), "{faults:?}");
        let spec = pod.unwrap().spec.unwrap();
        assert_eq!(spec.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap()["cpu"].0, "1");
    }
}
