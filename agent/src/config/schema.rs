//! JSON schemas of the configuration file for editors, made from the tables of keys by which the file is read and the
//! descriptions in docs/configuration.md.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::keys::{KUBELET, Key, LIMPET, LIMPET_VERSION, Shape, Support};

const PAGE: &str = include_str!("../../../docs/configuration.md");

/// A Go duration: `1m30s`.
const DURATION_PATTERN: &str = r"^[-+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// The schema of `LimpetConfiguration`.
pub fn limpet() -> Value {
    document("LimpetConfiguration", LIMPET_VERSION, LIMPET)
}

/// The schema of the `KubeletConfiguration` keys that work in limpet. Others are accepted with a warning, so they are
/// not errors here.
pub fn kubelet() -> Value {
    let mut schema = document("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1", KUBELET);
    schema["additionalProperties"] = true.into();
    schema
}

/// The description of each key in docs/configuration.md. The key `a.b` is under that name.
pub fn descriptions() -> BTreeMap<String, String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let keys = rows.flat_map(|(names, rest)| {
        let meaning = cells(rest);
        let names: Vec<String> = names.split("`, `").map(str::to_owned).collect();
        names.into_iter().map(move |name| (name, meaning.clone()))
    });
    keys.filter(|(name, _)| !name.starts_with('-')).collect()
}

/// The cells of a table's row after the first, as a sentence: the meaning, and the default if there is one.
fn cells(rest: &str) -> String {
    let rest = rest.trim_end().trim_end_matches('|').trim_end();
    match rest.split_once(" | ") {
        Some((meaning, default)) => format!("{}. Default: {}", plain(meaning), plain(default)),
        None => plain(rest),
    }
}

/// Markdown without the targets of its links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut left = text;
    while let Some((before, after)) = left.split_once('[') {
        plain.push_str(before);
        let link = after.split_once("](").and_then(|(label, rest)| Some((label, rest.split_once(')')?.1)));
        left = match link {
            Some((label, rest)) => {
                plain.push_str(label);
                rest
            }
            None => {
                plain.push('[');
                after
            }
        };
    }
    plain + left
}

fn document(kind: &str, version: &str, keys: &[Key]) -> Value {
    let mut schema = object(keys, "", &descriptions());
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = kind.into();
    schema["properties"]["apiVersion"] = json!({ "const": version });
    schema["properties"]["kind"] = json!({ "const": kind });
    schema["required"] = json!(["apiVersion", "kind"]);
    schema
}

fn object(keys: &[Key], parent: &str, descriptions: &BTreeMap<String, String>) -> Value {
    let acting = keys.iter().filter(|key| key.support == Support::Acts || is_partly_supported(key));
    let properties = acting.map(|key| {
        let path = if parent.is_empty() { key.name.to_owned() } else { format!("{parent}.{}", key.name) };
        let mut schema = value(key.shape, &path, descriptions);
        if let Some(description) = descriptions.get(&path) {
            schema["description"] = description.as_str().into();
        }
        (key.name.to_owned(), schema)
    });
    let properties: Map<String, Value> = properties.collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// An object that has no effect as a whole, but has a key that works.
fn is_partly_supported(key: &Key) -> bool {
    matches!(key.shape, Shape::Object(parts) if parts.iter().any(|part| part.support == Support::Acts))
}

fn value(shape: Shape, path: &str, descriptions: &BTreeMap<String, String>) -> Value {
    match shape {
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::Int => json!({ "type": "integer" }),
        Shape::Float => json!({ "type": "number" }),
        Shape::Text => json!({ "type": "string" }),
        // Some editors read YAML 1.1, in which `off` is false.
        Shape::Switch => json!({ "type": ["string", "boolean"] }),
        Shape::Duration => json!({ "type": "string", "pattern": DURATION_PATTERN }),
        Shape::DurationOrInt => {
            json!({ "anyOf": [{ "type": "string", "pattern": DURATION_PATTERN }, { "type": "integer" }] })
        }
        Shape::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Shape::Ints => json!({ "type": "array", "items": { "type": "integer" } }),
        Shape::Map => json!({ "type": "object" }),
        Shape::List => json!({ "type": "array" }),
        Shape::Object(parts) => object(parts, path, descriptions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_works_is_described() {
        for schema in [limpet(), kubelet()] {
            assert_eq!(undescribed(&schema, ""), Vec::<String>::new(), "{}", schema["title"]);
        }
    }

    fn undescribed(schema: &Value, prefix: &str) -> Vec<String> {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let missing = properties.filter(|(name, _)| !["apiVersion", "kind"].contains(&name.as_str()));
        let missing = missing.flat_map(|(name, property)| match property.get("properties") {
            Some(_) => undescribed(property, &format!("{prefix}{name}.")),
            None if property.get("description").is_none() => vec![format!("{prefix}{name}")],
            None => Vec::new(),
        });
        missing.collect()
    }

    #[test]
    fn links_and_defaults_are_read_as_text() {
        let row = "the [Standard](sources.md#standards) of `file` [odd | none |";
        assert_eq!(cells(row), "the Standard of `file` [odd. Default: none");
        assert_eq!(descriptions()["rootDirectory"], "as `--root-dir`. Default: `/var/lib/limpet`");
    }

    #[test]
    fn a_key_without_effect_is_not_offered() {
        let schema = kubelet();
        assert!(schema["properties"].get("hairpinMode").is_none());
        assert_eq!(schema["properties"]["logging"]["properties"]["verbosity"]["type"], "integer");
        assert_eq!(limpet()["additionalProperties"], false);
    }
}
