//! Manifests that both limpet and a real apiserver validate, with the apiserver's answers.
//!
//! `agent/model/tests/corpus/AREA.yaml` has the cases of one area of the Pod API. Each is a patch on a small Pod
//! (`base.yaml`), and says whether the result should be accepted. `answers.jsonl` has the apiserver's results: the
//! fields it refused, or how its object differs from its base with the same patch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::agent::workspace_dir;

/// One manifest.
#[derive(Debug, Clone)]
pub struct Case {
    /// `AREA/name`.
    pub id: String,
    /// Whether it is meant to be accepted.
    pub good: bool,
    /// How it differs from the base.
    pub patch: Value,
}

/// An apiserver's answer to one manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Accepted: what it adds to the defaulted base with the case's patch, by JSON pointer; null removes.
    Object(Map<String, Value>),
    /// Refused for these fields; none if the manifest could not even be decoded.
    Refused(Vec<String>),
}

/// All answers of one apiserver.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    pub version: String,
    /// What it made of the base.
    pub base: Value,
    pub cases: BTreeMap<String, Answer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    good: Option<Value>,
    bad: Option<Value>,
}

/// Where the corpus is.
pub fn dir() -> PathBuf {
    workspace_dir().join("agent/model/tests/corpus")
}

/// The Pod that every case changes.
pub fn base() -> Result<Value> {
    let path = dir().join("base.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{}", path.display()))
}

/// Every case, by area and in the order they are written.
pub fn cases() -> Result<Vec<Case>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml") && !path.ends_with("base.yaml"));
    files.sort();
    let mut cases = Vec::new();
    for path in &files {
        cases.extend(area(path).with_context(|| format!("{}", path.display()))?);
    }
    Ok(cases)
}

fn area(path: &Path) -> Result<Vec<Case>> {
    let area = path.file_stem().and_then(|stem| stem.to_str()).context("a name in UTF-8")?;
    let lines: Vec<Line> = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    let mut cases: Vec<Case> = Vec::with_capacity(lines.len());
    for Line { name, good, bad } in lines {
        let id = format!("{area}/{name}");
        ensure!(cases.iter().all(|case| case.id != id), "{id} is there twice");
        let (good, patch) = match (good, bad) {
            (Some(patch), None) => (true, patch),
            (None, Some(patch)) => (false, patch),
            _ => bail!("{id} must be either good or bad"),
        };
        cases.push(Case { id, good, patch });
    }
    Ok(cases)
}

/// Changes `value`: objects are merged, and null removes a field; the items of lists are merged one by one, and those
/// beyond the end are added; anything else is replaced. `{"$repeat": n, "$of": "text"}` is replaced by a long text,
/// `{"$repeat": n, "$list": item}` by a long list.
pub fn apply(value: &mut Value, patch: &Value) {
    match (&mut *value, patch) {
        (_, Value::Object(patch)) if patch.contains_key("$repeat") => *value = repeated(patch),
        (Value::Object(map), Value::Object(patch)) => {
            for (key, patch) in patch {
                if patch.is_null() {
                    map.remove(key);
                } else {
                    apply(map.entry(key.clone()).or_insert(Value::Null), patch);
                }
            }
        }
        (Value::Array(items), Value::Array(patches)) => {
            for (index, patch) in patches.iter().enumerate() {
                if index == items.len() {
                    items.push(Value::Null);
                }
                apply(&mut items[index], patch);
            }
        }
        (_, Value::Object(_)) => {
            *value = json!({});
            apply(value, patch);
        }
        (_, Value::Array(_)) => {
            *value = json!([]);
            apply(value, patch);
        }
        (_, patch) => *value = patch.clone(),
    }
}

/// A long text, or a long list; `%` in the texts of an item is replaced by its number.
fn repeated(patch: &Map<String, Value>) -> Value {
    let count = patch["$repeat"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    match (patch.get("$of"), patch.get("$list")) {
        (Some(Value::String(text)), _) => Value::String(text.repeat(count)),
        (_, Some(item)) => (0..count).map(|index| numbered(item, index)).collect(),
        _ => Value::Null,
    }
}

fn numbered(item: &Value, index: usize) -> Value {
    match item {
        Value::String(text) => Value::String(text.replace('%', &index.to_string())),
        Value::Array(items) => items.iter().map(|item| numbered(item, index)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), numbered(item, index))).collect(),
        leaf => leaf.clone(),
    }
}

/// The changes that turn `from` into `to`, by JSON pointer.
pub fn difference(from: &Value, to: &Value) -> Map<String, Value> {
    let mut changes = Map::new();
    compare(from, to, String::new(), &mut changes);
    changes
}

fn compare(from: &Value, to: &Value, at: String, changes: &mut Map<String, Value>) {
    let below = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            for (key, value) in to {
                match from.get(key) {
                    Some(old) => compare(old, value, below(key), changes),
                    None => drop(changes.insert(below(key), value.clone())),
                }
            }
            for key in from.keys().filter(|key| !to.contains_key(*key)) {
                changes.insert(below(key), Value::Null);
            }
        }
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            for (index, (from, to)) in from.iter().zip(to).enumerate() {
                compare(from, to, below(&index.to_string()), changes);
            }
        }
        (from, to) if from == to => {}
        (_, to) => drop(changes.insert(at, to.clone())),
    }
}

/// Makes the changes that [`difference`] returned.
pub fn change(value: &mut Value, changes: &Map<String, Value>) {
    for (pointer, new) in changes {
        let Some((parent, key)) = pointer.rsplit_once('/') else {
            *value = new.clone();
            continue;
        };
        let key = key.replace("~1", "/").replace("~0", "~");
        match value.pointer_mut(parent) {
            Some(Value::Object(map)) if new.is_null() => drop(map.remove(&key)),
            Some(Value::Object(map)) => drop(map.insert(key, new.clone())),
            Some(Value::Array(items)) => {
                if let Some(item) = key.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                    *item = new.clone();
                }
            }
            _ => {}
        }
    }
}

impl Answers {
    /// Reads those in the repository.
    pub fn read() -> Result<Self> {
        let path = dir().join("answers.jsonl");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let mut lines = text.lines().map(serde_json::from_str::<Value>);
        let head = lines.next().context("answers.jsonl is empty")??;
        let version = head["apiserver"].as_str().context("no version")?.to_owned();
        let mut cases = BTreeMap::new();
        for line in lines {
            let line = line?;
            let id = line["case"].as_str().context("a line without a case")?.to_owned();
            let answer = match (&line["object"], &line["refused"]) {
                (Value::Object(changes), _) => Answer::Object(changes.clone()),
                (_, Value::Array(fields)) => {
                    Answer::Refused(fields.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                }
                _ => bail!("{id} has no answer"),
            };
            cases.insert(id, answer);
        }
        Ok(Self { version, base: head["base"].clone(), cases })
    }

    /// Writes them to the repository.
    pub fn write(&self) -> Result<()> {
        let mut text = format!("{}\n", json!({"apiserver": self.version, "base": self.base}));
        for (id, answer) in &self.cases {
            let line = match answer {
                Answer::Object(changes) => json!({"case": id, "object": changes}),
                Answer::Refused(fields) => json!({"case": id, "refused": fields}),
            };
            text.push_str(&format!("{line}\n"));
        }
        let path = dir().join("answers.jsonl");
        fs::write(&path, text).with_context(|| format!("{}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_merges_objects_and_items() {
        let mut value = json!({"a": 1, "b": [{"c": 1}], "d": {"e": 1}});
        apply(&mut value, &json!({"a": null, "b": [{"f": 2}, {"g": 3}], "d": {"e": {"$repeat": 3, "$of": "x"}}}));
        assert_eq!(value, json!({"b": [{"c": 1, "f": 2}, {"g": 3}], "d": {"e": "xxx"}}));
        apply(&mut value, &json!({"b": {"$repeat": 2, "$list": {"n": "n%"}}}));
        assert_eq!(value["b"], json!([{"n": "n0"}, {"n": "n1"}]));
    }

    #[test]
    fn a_difference_is_made_good_by_its_changes() {
        let from = json!({"a": 1, "b": [1, 2], "c": {"d/e": [{"f": 1}]}, "g": 0});
        let to = json!({"a": 2, "b": [1], "c": {"d/e": [{"f": 2, "h": {}}]}, "i": []});
        let changes = difference(&from, &to);
        assert_eq!(changes["/c/d~1e/0/f"], 2);
        let mut made = from;
        change(&mut made, &changes);
        assert_eq!(made, to);
    }
}
