//! Parses YAML and JSON as kubelet does, with the position of every field.
//!
//! JSON is YAML. Octal `0644`, `yes` and `on`, merge keys, and numbers as map keys are read as by `sigs.k8s.io/yaml`.
//! A duplicate key, of which kubelet uses the last, is an error here. `\'` in double quotes, which YAML does not
//! have, is read as `'`, as it is there. Size, depth and aliases are limited. If one document is not YAML, the others
//! are still read: a line that begins with `---` separates two documents whatever precedes it. Positions are found by
//! a second parse, and only for a file that has a fault.

mod escaped_quotes;
mod positions;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location, Options};

use positions::Positions;

use crate::pod::Fault;

/// kubelet's limit for one file or one HTTP response.
pub(super) const MAX_BYTES: usize = 10 << 20;
/// Maximum number of documents in one file.
const MAX_DOCUMENTS: usize = 10_000;
/// Maximum nesting of one document; a Pod needs about a dozen levels.
const MAX_DEPTH: usize = 64;
/// Maximum number of strings of one text with [`escaped_quotes`], because the text is parsed again for each.
const MAX_ESCAPED_QUOTES: usize = 64;
/// Maximum number of aliases in one file.
const MAX_ALIASES: usize = 10_000;

/// One document: its value, and on demand the position of each field.
#[derive(Debug, Clone)]
pub(crate) struct Document<'t> {
    /// The value as JSON; of a duplicate key the last value.
    pub value: Value,
    /// Duplicate keys, with their positions.
    pub duplicates: Vec<Fault>,
    file: Rc<File<'t>>,
    /// Its index in the file, counting omitted documents too.
    index: usize,
}

impl Document<'_> {
    /// Line and column of `path`, or of the nearest field above it. A key may be in brackets or after a dot.
    pub(crate) fn position(&self, path: &str) -> Option<(u32, u32)> {
        self.file.positions().get(self.index)?.position(path)
    }
}

/// A text, and the positions in it, computed on first use.
#[derive(Debug)]
struct File<'t> {
    text: Cow<'t, str>,
    /// How many lines precede the text.
    first_line: u32,
    /// How many texts share the limits.
    parts: usize,
    positions: OnceCell<Vec<Positions>>,
}

impl File<'_> {
    /// The positions of each document.
    fn positions(&self) -> &[Positions] {
        self.positions.get_or_init(|| {
            // A text that could be parsed once can be parsed again.
            let read = positions::read(&self.text, self.first_line, options(DuplicateKeyPolicy::LastWins, self.parts));
            read.unwrap_or_default()
        })
    }
}

/// Parses every document of a file; empty ones are omitted. A document that is not YAML is a fault, and those after
/// it are still parsed. A text that is too large, or not UTF-8, is a fault, and nothing is parsed.
pub(crate) fn documents(text: &[u8]) -> (Vec<Document<'_>>, Vec<Fault>) {
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
    // The whole text has a fault that none of its parts has: it exceeds a limit that they share.
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

/// The documents of a text, unparsed: the number of lines before each, and its text with its marker.
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

/// Parses the documents of a text that begins after `first_line` lines and is one of `parts` that share the limits.
fn parse(text: &str, first_line: u32, parts: usize) -> Result<Vec<Document<'_>>, Fault> {
    let read = |text: &str, keys| serde_saphyr::from_multiple_with_options::<Json>(text, options(keys, parts));
    let (mut text, mut duplicated) = (Cow::Borrowed(text), false);
    let mut values = read(&text, DuplicateKeyPolicy::Error);
    for _ in 0..MAX_ESCAPED_QUOTES {
        let Some(plain) = values.as_ref().err().and_then(|error| escaped_quotes::removed(&text, error)) else { break };
        text = Cow::Owned(plain);
        values = read(&text, DuplicateKeyPolicy::Error);
    }
    // Parses again, to report all duplicate keys.
    if matches!(&values, Err(error) if matches!(error.without_snippet(), Error::DuplicateMappingKey { .. })) {
        duplicated = true;
        values = read(&text, DuplicateKeyPolicy::LastWins);
    }
    let values = values.map_err(|error| syntax(&error, first_line))?;
    let file = Rc::new(File { text, first_line, parts, positions: OnceCell::new() });
    let documents = values.into_iter().enumerate().map(|(index, Json(value))| {
        let positions = if duplicated { file.positions().get(index) } else { None };
        let duplicates = positions.map(|positions| positions.duplicates.clone()).unwrap_or_default();
        Document { value, duplicates, file: Rc::clone(&file), index }
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
    // The parser's message without its prefix and position, which are fields of the fault.
    let message = first.trim_start_matches("error: ");
    let message = match message.split_once(": ") {
        Some((position, rest)) if position.starts_with("line ") => rest,
        _ => message,
    };
    let mut fault = Fault::syntax(message);
    fault.position = error.location().map(|location| shifted(line_column(location), first_line));
    fault
}

fn line_column(location: Location) -> (u32, u32) {
    let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (bounded(location.line()), bounded(location.column()))
}

/// A position in a text that begins after `first_line` lines.
fn shifted((line, column): (u32, u32), first_line: u32) -> (u32, u32) {
    (line.saturating_add(first_line), column)
}

/// The path of `key` below `path`, as kubectl writes it; a key that is not a plain name is in brackets.
pub(crate) fn join(path: &str, key: &str) -> String {
    if key.contains(['.', '[', ']', '/']) {
        format!("{path}[{key}]")
    } else if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// A value as kubelet's conversion through JSON produces it.
struct Json(Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Json(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// A float that is a whole number becomes that whole number, as in kubelet's conversion through JSON.
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
