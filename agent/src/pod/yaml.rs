//! YAML and JSON as kubelet reads them (kubelet-semantics D2a), with the place of every field.
//!
//! JSON is YAML. Octal `0644`, `yes` and `on`, merge keys, numbers as map keys are taken as `sigs.k8s.io/yaml` takes
//! them; a duplicated key, which kubelet lets the last win, is an error here. Size, depth and aliases are bounded.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Options, Spanned};

use super::Fault;

/// kubelet's limit for one file or one answer.
pub(super) const MAX_BYTES: usize = 10 << 20;
/// Documents of one file.
const MAX_DOCUMENTS: usize = 10_000;
/// Nesting of one document; a Pod needs about a dozen.
const MAX_DEPTH: usize = 64;
/// Bytes of the path of a field whose place is kept.
const MAX_PATH: usize = 512;
/// Aliases of one file.
const MAX_ALIASES: usize = 10_000;

/// One document: its value, and where each field stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Document {
    /// The value as JSON.
    pub(super) value: Value,
    /// Where each field stands: `spec.containers[0].image` -> line and column, one-based.
    pub(super) positions: BTreeMap<String, (u32, u32)>,
}

impl Document {
    /// Where `path` stands, or the nearest field above it.
    pub(super) fn position(&self, path: &str) -> Option<(u32, u32)> {
        let mut path = path;
        loop {
            if let Some(position) = self.positions.get(path) {
                return Some(*position);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// Reads every document of a file; empty ones are left out.
///
/// # Errors
/// One fault: the text is too large, not UTF-8, or no YAML. What follows it cannot be told.
pub(super) fn documents(text: &[u8]) -> Result<Vec<Document>, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::error("", format!("larger than {} MiB", MAX_BYTES >> 20)).with_remedy("split it"));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let line = text[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        let mut fault = Fault::error("", "not UTF-8 text");
        fault.position = Some((u32::try_from(line).unwrap_or(u32::MAX), 1));
        fault
    })?;
    let nodes: Vec<Node> = serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| syntax(&error))?;
    let documents = nodes.into_iter().map(|node| {
        let mut positions = BTreeMap::new();
        let value = node.settle("", &mut positions);
        Document { value, positions }
    });
    Ok(documents.filter(|document| !document.value.is_null()).collect())
}

fn options() -> Options {
    let mut budget = serde_saphyr::budget::Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_documents = MAX_DOCUMENTS;
    budget.max_aliases = MAX_ALIASES;
    budget.max_reader_input_bytes = Some(MAX_BYTES);
    let mut options = Options::default();
    options.budget = Some(budget);
    options.legacy_octal_numbers = true;
    options.strict_booleans = false;
    options
}

fn syntax(error: &serde_saphyr::Error) -> Fault {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    // The parser's words without its own prefix and place, which the fault has as fields.
    let message = first.trim_start_matches("error: ");
    let message = match message.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => message,
    };
    let mut fault = Fault::error("", message);
    fault.position = error.location().map(place);
    fault
}

fn place(location: Location) -> (u32, u32) {
    let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (bounded(location.line()), bounded(location.column()))
}

/// A value of the file and where it stands.
struct Node {
    position: (u32, u32),
    value: Tree,
}

enum Tree {
    Leaf(Value),
    List(Vec<Node>),
    Map(Vec<(String, (u32, u32), Node)>),
}

impl Node {
    /// The plain value; where each part stands goes into `positions`. A key's place is the key's, an item's its own.
    fn settle(self, path: &str, positions: &mut BTreeMap<String, (u32, u32)>) -> Value {
        // Long paths are nobody's fields, and would make memory grow with the square of the file.
        let known = path.len() <= MAX_PATH;
        if known {
            positions.entry(path.to_owned()).or_insert(self.position);
        }
        match self.value {
            Tree::Leaf(value) => value,
            Tree::List(items) => {
                let items = items.into_iter().enumerate();
                items
                    .map(|(index, item)| match known {
                        true => item.settle(&format!("{path}[{index}]"), positions),
                        false => item.settle(path, positions),
                    })
                    .collect()
            }
            Tree::Map(entries) => {
                let mut map = Map::new();
                for (key, position, node) in entries {
                    let path = if known { join(path, &key) } else { path.to_owned() };
                    if path.len() <= MAX_PATH {
                        positions.insert(path.clone(), position);
                    }
                    map.insert(key, node.settle(&path, positions));
                }
                Value::Object(map)
            }
        }
    }
}

/// The path of `key` below `path`, as kubectl writes it; a key that is no plain name stands in brackets.
pub(crate) fn join(path: &str, key: &str) -> String {
    if key.contains(['.', '[', ']', '/']) {
        format!("{path}[{key}]")
    } else if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree>::deserialize(deserializer)?;
        Ok(Self { position: place(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Number(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf(number(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element()? {
            list.push(node);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            map.push((key.value, place(key.referenced), entries.next_value()?));
        }
        Ok(Tree::Map(map))
    }
}

/// A float that is a whole number is that whole number, as in kubelet's way through JSON.
fn number(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        // Whole and within 2^53: the conversion is exact.
        #[allow(clippy::cast_possible_truncation)]
        return Value::Number((value as i64).into());
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scalar(text: &str) -> Value {
        documents(format!("k: {text}\n").as_bytes()).unwrap().remove(0).value["k"].clone()
    }

    #[test]
    fn scalars_mean_what_they_mean_to_kubelet() {
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
            documents(text.as_bytes()).unwrap().into_iter().map(|document| document.value).collect()
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
    fn every_field_has_its_place() {
        let document = documents(b"spec:\n  containers:\n  - name: a\n    image: b\n").unwrap().remove(0);
        assert_eq!(document.position("spec.containers[0].image"), Some((4, 5)));
        assert_eq!(document.position("spec.containers[0].image.tag"), Some((4, 5)), "the nearest one above");
        assert_eq!(document.position("metadata"), None);
    }

    #[test]
    fn what_is_no_yaml_is_one_fault_with_its_place() {
        for (text, line, word) in [
            ("a: 1\na: 2\n", 2, "duplicate"),
            ("a:\n\tb: 1\n", 2, "tabs"),
            ("a: .inf\n", 1, "non-finite"),
            ("a: [1\n", 1, "bracket"),
        ] {
            let fault = documents(text.as_bytes()).unwrap_err();
            assert_eq!(fault.position.map(|(line, _)| line), Some(line), "{text:?}: {fault}");
            assert!(fault.message.contains(word), "{text:?}: {fault}");
        }
        assert!(documents(b"a: \xff").unwrap_err().message.contains("UTF-8"));
        let deep = "[".repeat(1000);
        assert!(documents(deep.as_bytes()).is_err());
        assert!(documents(&vec![b' '; MAX_BYTES + 1]).unwrap_err().message.contains("10 MiB"));
    }
}
