//! The canonical form of a manifest as authored, and its hashes. It must never change, because a pod's identity
//! depends on it.
//!
//! Canonical means: JSON without white space, keys in byte order, `null` equal to an absent key, numbers and
//! quantities as written (a quantity `1` and `"1"` differ, `0.5` and `500m` differ), unknown keys kept. The hash is
//! the first half of SHA-256.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// 128-bit hash of a manifest's canonical form as authored (ARCHITECTURE.md, identity).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Fields of the pod that can change in place; for every container, [`CONTAINER_IN_PLACE`]. These lists are frozen,
/// because changing them would give every pod another UID.
const POD_IN_PLACE: [&str; 3] = ["activeDeadlineSeconds", "resources", "tolerations"];
const METADATA_IN_PLACE: [&str; 2] = ["annotations", "labels"];
const CONTAINER_IN_PLACE: [&str; 2] = ["image", "resources"];
pub(super) const CONTAINER_LISTS: [&str; 3] = ["containers", "ephemeralContainers", "initContainers"];

/// The canonical form of `manifest` without its `status`, which is not desired state.
pub(crate) fn canonical(manifest: &Value) -> Vec<u8> {
    without(manifest, |steps| *steps == ["status"])
}

/// The canonical form of `manifest` without the fields for which `is_left_out` is true, given their steps; `*` means
/// for an item of a list.
fn without(manifest: &Value, is_left_out: impl Fn(&[&str]) -> bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    write(manifest, &mut Vec::new(), &is_left_out, &mut text);
    text
}

fn write<'a>(value: &'a Value, steps: &mut Vec<&'a str>, is_left_out: &impl Fn(&[&str]) -> bool, text: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            text.push(b'{');
            let mut first = true;
            for (key, value) in fields {
                steps.push(key);
                if !is_left_out(steps) {
                    if !std::mem::take(&mut first) {
                        text.push(b',');
                    }
                    write_leaf(key, text);
                    text.push(b':');
                    write(value, steps, is_left_out, text);
                }
                steps.pop();
            }
            text.push(b'}');
        }
        Value::Array(items) => {
            text.push(b'[');
            steps.push("*");
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write(item, steps, is_left_out, text);
            }
            steps.pop();
            text.push(b']');
        }
        leaf => write_leaf(leaf, text),
    }
}

fn write_leaf(leaf: &impl Serialize, text: &mut Vec<u8>) {
    // Writing a text or number to memory cannot fail.
    let _ = serde_json::to_writer(text, leaf);
}

/// The hash of some bytes.
pub(crate) fn hash(bytes: &[u8]) -> Fingerprint {
    let digest = Sha256::digest(bytes);
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Fingerprint(half)
}

/// The hash of the fields of `manifest` that cannot change in place.
pub(crate) fn immutable(manifest: &Value) -> Fingerprint {
    hash(&without(manifest, is_in_place))
}

/// Whether the field at `steps` can change in place; `*` means an item of a list.
pub(super) fn is_in_place(steps: &[&str]) -> bool {
    match steps {
        ["status", ..] => true,
        // They are only ever added, to a running pod.
        ["spec", "ephemeralContainers", ..] => true,
        ["metadata", field, ..] => METADATA_IN_PLACE.contains(field),
        ["spec", list, "*", field, ..] if CONTAINER_LISTS.contains(list) => CONTAINER_IN_PLACE.contains(field),
        ["spec", field, ..] => POD_IN_PLACE.contains(field),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use crate::pod::fingerprint::*;

    #[test]
    fn the_canonical_form_is_pinned() {
        let manifest = json!({
            "status": {"phase": "Running"},
            "spec": {"b": 1.5, "a": "ä\n\"", "n": null, "l": [1, null, {"z": 0, "y": []}]},
            "x": {}
        });
        assert_eq!(
            String::from_utf8(canonical(&manifest)).unwrap(),
            "{\"spec\":{\"a\":\"ä\\n\\\"\",\"b\":1.5,\"l\":[1,null,{\"y\":[],\"z\":0}]},\"x\":{}}"
        );
        assert_eq!(hash(&canonical(&json!({}))).to_string(), "44136fa355b3678a1146ad16f7e8649e");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,4}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-z]{1,3}", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Reading the canonical form again gives the canonical form, so only nulls and order are lost.
        #[test]
        fn the_canonical_form_is_stable(value in value()) {
            let text = canonical(&value);
            let again: Value = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(canonical(&again), text);
        }

        #[test]
        fn a_null_is_an_absent_key(value in value(), key in "[A-Z]{1,3}") {
            prop_assume!(value.is_object());
            let mut with = value.clone();
            with[key.as_str()] = Value::Null;
            prop_assert_eq!(canonical(&with), canonical(&value));
        }
    }
}
