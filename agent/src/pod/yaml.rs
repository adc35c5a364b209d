//! YAML and JSON as kubelet reads them (kubelet-semantics D2a), with the place of every field.
//!
//! JSON is YAML. Octal `0644`, `yes` and `on`, merge keys, numbers as map keys are taken as `sigs.k8s.io/yaml` takes
//! them; a duplicated key, which kubelet lets the last win, is an error here. Size, depth and aliases are bounded.
//! Where one document is no YAML, the others are read all the same: a line that begins with `---` parts two documents
//! whatever stands before it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location, Options, Spanned};

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
/// Duplicated keys told of one document.
const MAX_DUPLICATES: usize = 20;

/// One document: its value, and where each field stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Document {
    /// The value as JSON.
    pub(super) value: Value,
    /// Where each field stands: `spec.containers[0].image` -> line and column, one-based.
    pub(super) positions: BTreeMap<String, (u32, u32)>,
    /// Keys that are written twice, with their places.
    pub(super) duplicates: Vec<Fault>,
}

impl Document {
    /// Where `path` stands, or the nearest field above it. A key may stand in brackets or after a dot.
    pub(super) fn position(&self, path: &str) -> Option<(u32, u32)> {
        let mut path = path;
        loop {
            if let Some(position) = self.positions.get(path) {
                return Some(*position);
            }
            let end = path.rfind(['.', '['])?;
            let key = path[end..].strip_prefix('[').and_then(|key| key.strip_suffix(']'));
            if let Some(position) = key.and_then(|key| self.positions.get(&join(&path[..end], key))) {
                return Some(*position);
            }
            path = &path[..end];
        }
    }
}

/// Reads every document of a file; empty ones are left out. A document that is no YAML is a fault, and what follows it
/// is read; so is a text that is too large, or not UTF-8, and then nothing is read.
pub(super) fn documents(text: &[u8]) -> (Vec<Document>, Vec<Fault>) {
    let text = match bounded_text(text) {
        Ok(text) => text,
        Err(fault) => return (Vec::new(), vec![fault]),
    };
    let fault = match parse(text, 0, 1) {
        Ok(documents) => return (documents, Vec::new()),
        Err(fault) => fault,
    };
    let parts = parts(text);
    if parts.len() < 2 || parts.len() > MAX_DOCUMENTS {
        return (Vec::new(), vec![fault]);
    }
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for (first_line, part) in &parts {
        match parse(part, *first_line, parts.len()) {
            Ok(read) => documents.extend(read),
            Err(fault) => faults.push(fault),
        }
    }
    // A fault of the whole that no part shows: one limit for all of them.
    if faults.is_empty() {
        return (Vec::new(), vec![fault]);
    }
    (documents, faults)
}

fn bounded_text(text: &[u8]) -> Result<&str, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::syntax(format!("larger than {} MiB", MAX_BYTES >> 20)).with_remedy("split it"));
    }
    std::str::from_utf8(text).map_err(|error| {
        let line = text[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        let mut fault = Fault::syntax("not UTF-8 text");
        fault.position = Some((u32::try_from(line).unwrap_or(u32::MAX), 1));
        fault
    })
}

/// The documents of a text, unread: how many lines stand before each, and its text with its marker.
fn parts(text: &str) -> Vec<(u32, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut offset, mut number) = (0, 0, 0, 0);
    for line in text.split_inclusive('\n') {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker && offset > start {
            parts.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, number);
        }
        offset += line.len();
        number += 1;
    }
    parts.push((start_line, &text[start..]));
    parts
}

/// Reads the documents of a text that begins after `first_line` lines and is one of `parts` that share the limits.
fn parse(text: &str, first_line: u32, parts: usize) -> Result<Vec<Document>, Fault> {
    let read = |keys| serde_saphyr::from_multiple_with_options::<Node>(text, options(keys, parts));
    let nodes = match read(DuplicateKeyPolicy::Error) {
        // Read again so that the key's path can be told.
        Err(error) if matches!(error.without_snippet(), Error::DuplicateMappingKey { .. }) => {
            read(DuplicateKeyPolicy::LastWins)
        }
        read => read,
    };
    let nodes = nodes.map_err(|error| syntax(&error, first_line))?;
    let documents = nodes.into_iter().map(|node| {
        let mut places = Places { first_line, positions: BTreeMap::new(), duplicates: Vec::new() };
        let value = node.settle("", &mut places);
        Document { value, positions: places.positions, duplicates: places.duplicates }
    });
    Ok(documents.filter(|document| !document.value.is_null()).collect())
}

fn options(duplicate_keys: DuplicateKeyPolicy, parts: usize) -> Options {
    let mut budget = serde_saphyr::budget::Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_documents = MAX_DOCUMENTS;
    budget.max_aliases = (MAX_ALIASES / parts).max(1);
    budget.max_reader_input_bytes = Some(MAX_BYTES);
    let mut options = Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = (options.alias_limits.max_total_replayed_events / parts).max(1);
    options.legacy_octal_numbers = true;
    options.strict_booleans = false;
    options.duplicate_keys = duplicate_keys;
    options
}

fn syntax(error: &Error, first_line: u32) -> Fault {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    // The parser's words without its own prefix and place, which the fault has as fields.
    let message = first.trim_start_matches("error: ");
    let message = match message.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => message,
    };
    let mut fault = Fault::syntax(message);
    fault.position = error.location().map(|location| below(place(location), first_line));
    fault
}

fn place(location: Location) -> (u32, u32) {
    let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (bounded(location.line()), bounded(location.column()))
}

/// A place in a text that begins after `first_line` lines.
fn below((line, column): (u32, u32), first_line: u32) -> (u32, u32) {
    (line.saturating_add(first_line), column)
}

/// Where everything stands.
struct Places {
    /// Lines before the text.
    first_line: u32,
    positions: BTreeMap<String, (u32, u32)>,
    duplicates: Vec<Fault>,
}

impl Places {
    /// Notes a key that is written twice; beyond some, that there are more, of the document as a whole.
    fn duplicate(&mut self, path: &str, position: (u32, u32)) {
        let (path, message) = match self.duplicates.len() {
            count if count < MAX_DUPLICATES => (path, "Duplicate key"),
            MAX_DUPLICATES => ("", "more duplicated keys than are told"),
            _ => return,
        };
        let mut fault = Fault::error(path, message).with_remedy("write each once");
        fault.position = Some(position);
        self.duplicates.push(fault);
    }
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
    /// The plain value; where each part stands goes into `places`. A key's place is the key's, an item's its own.
    fn settle(self, path: &str, places: &mut Places) -> Value {
        // Long paths are nobody's fields, and would make memory grow with the square of the file.
        let known = path.len() <= MAX_PATH;
        if known {
            let position = below(self.position, places.first_line);
            places.positions.entry(path.to_owned()).or_insert(position);
        }
        match self.value {
            Tree::Leaf(value) => value,
            Tree::List(items) => {
                let items = items.into_iter().enumerate();
                items
                    .map(|(index, item)| match known {
                        true => item.settle(&format!("{path}[{index}]"), places),
                        false => item.settle(path, places),
                    })
                    .collect()
            }
            Tree::Map(entries) => {
                let mut map = Map::new();
                for (key, position, node) in entries {
                    let path = if known { join(path, &key) } else { path.to_owned() };
                    let position = below(position, places.first_line);
                    if map.contains_key(&key) {
                        places.duplicate(&path, position);
                    }
                    if path.len() <= MAX_PATH {
                        places.positions.insert(path.clone(), position);
                    }
                    map.insert(key, node.settle(&path, places));
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
mod tests;
