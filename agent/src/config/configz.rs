//! `/configz`: the configuration in effect, under kubelet's field names where kubelet has the field.

mod kubelet;
mod limpet;

use serde_json::{Map, Value, json};

use crate::config::Config;

/// kubelet's values of keys without effect, and limpet's if it behaves as with another value (`failSwapOn`). A client
/// that decodes the document into Go's type reads a missing key as zero, which has its own meaning: `cpuCFSQuota:
/// false`.
const WITHOUT_EFFECT: &str = include_str!("configz/without_effect.json");

/// The document of a configuration. It contains neither headers of the URL nor keys, and of files only their paths.
pub(crate) fn document(config: &Config) -> Value {
    // The text is constant, and a test parses it.
    let mut shown: Map<String, Value> = serde_json::from_str(WITHOUT_EFFECT).unwrap_or_default();
    put_over(&mut shown, config.files.without_effect.clone());
    for part in kubelet::parts(config) {
        put_over(&mut shown, part.as_object().cloned().unwrap_or_default());
    }
    json!({ "kubeletconfig": shown, "limpetconfig": limpet::limpet_document(config) })
}

/// Adds what `later` has. Null removes a key, because Go's clients do not accept null for a duration.
fn put_over(earlier: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        match (earlier.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(known)), Value::Object(more)) => put_over(known, more),
            (None, Value::Object(more)) => {
                let mut known = Map::new();
                put_over(&mut known, more);
                earlier.insert(key, known.into());
            }
            (_, value) => drop(earlier.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests;
