//! The fields that differ between two versions of a manifest as authored, for `diff` output.
//!
//! List items are identified by Kubernetes' merge keys (a container by its name), so that an item that was moved or
//! added does not change the items after it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::pod::{PodRecord, field_path, fingerprint};

/// The key that identifies the items of a list: the Pod API's merge keys.
const ITEM_KEYS: [(&str, &str); 16] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("items", "key"),
    ("options", "name"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
    ("sysctls", "name"),
    ("claims", "name"),
];

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The field: `spec.containers[web].env[BAUD]`.
    pub path: String,
    /// The field of the Pod API that contains it: `env`.
    pub field: String,
    /// The old value; `None`: absent.
    pub old: Option<Value>,
    /// The new value; `None`: absent.
    pub new: Option<Value>,
    /// Whether the pod can change it in place.
    pub in_place: bool,
}

/// Every field that differs, in the order of their names.
pub fn edits(old: &PodRecord, new: &PodRecord) -> Vec<Edit> {
    edits_between(&old.manifest, &new.manifest)
}

/// The same for two versions of any manifest, canonical JSON.
pub fn edits_between(old: &[u8], new: &[u8]) -> Vec<Edit> {
    let [old, new] = [old, new].map(|manifest| serde_json::from_slice::<Value>(manifest).unwrap_or_default());
    let mut edits = Vec::new();
    compare(&Location::default(), Some(&old), Some(&new), &mut edits);
    edits
}

/// A location in the manifest: as text, and as steps, `*` for any item of a list.
#[derive(Debug, Clone, Default)]
struct Location<'a> {
    path: String,
    steps: Vec<&'a str>,
}

impl<'a> Location<'a> {
    fn field(&self, name: &'a str) -> Self {
        Self { path: field_path(&self.path, name), steps: [&self.steps, &[name][..]].concat() }
    }

    fn item(&self, name: &str) -> Self {
        Self { path: format!("{}[{name}]", self.path), steps: [&self.steps, &["*"][..]].concat() }
    }

    fn is_item(&self) -> bool {
        self.steps.last() == Some(&"*")
    }

    fn edit(&self, old: Option<&Value>, new: Option<&Value>) -> Edit {
        let field = match self.steps[..] {
            ["spec", list, "*", field, ..] if fingerprint::CONTAINER_LISTS.contains(&list) => field,
            [_, field, ..] | [field] => field,
            [] => "",
        };
        Edit {
            path: self.path.clone(),
            field: field.to_owned(),
            old: old.cloned(),
            new: new.cloned(),
            in_place: fingerprint::is_in_place(&self.steps),
        }
    }
}

fn compare<'a>(at: &Location<'a>, old: Option<&'a Value>, new: Option<&'a Value>, edits: &mut Vec<Edit>) {
    if old == new {
        return;
    }
    let before = edits.len();
    if let (Some(old), Some(new)) = (fields(at, old), fields(at, new)) {
        for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            compare(&at.field(name), old.get(name), new.get(name), edits);
        }
    } else if let (Some(old), Some(new)) = (items(at, old), items(at, new)) {
        lists(at, &old, &new, edits);
    }
    // None of its fields differs, or it has none: `{}` was added, or a scalar became a list.
    if edits.len() == before {
        edits.push(at.edit(old, new));
    }
}

/// The fields of a map. An absent map has none, so that an added or removed map is reported field by field. A list
/// item is reported as a whole.
fn fields<'a>(at: &Location<'_>, value: Option<&'a Value>) -> Option<&'a Map<String, Value>> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    match value {
        Some(value) => value.as_object(),
        None => (!at.is_item()).then_some(&NONE),
    }
}

type Items<'a> = Vec<(String, &'a Value)>;

/// The items of a list by their merge key; `None` if they have none, or two have the same.
fn items<'a>(at: &Location<'_>, value: Option<&'a Value>) -> Option<Items<'a>> {
    let (_, key) = ITEM_KEYS.iter().find(|(list, _)| at.steps.last() == Some(list))?;
    let Some(value) = value else { return Some(Vec::new()) };
    let mut known = BTreeSet::new();
    let item = |item: &'a Value| {
        let name = match &item[*key] {
            Value::String(name) => name.clone(),
            Value::Number(number) => number.to_string(),
            _ => return None,
        };
        known.insert(name.clone()).then_some((name, item))
    };
    value.as_array()?.iter().map(item).collect()
}

fn lists<'a>(at: &Location<'a>, old: &Items<'a>, new: &Items<'a>, edits: &mut Vec<Edit>) {
    let find = |list: &Items<'a>, name: &str| list.iter().find(|(other, _)| other == name).map(|(_, item)| *item);
    for (name, item) in new {
        one_item(&at.item(name), find(old, name), Some(item), edits);
    }
    for (name, item) in old.iter().filter(|(name, _)| find(new, name).is_none()) {
        one_item(&at.item(name), Some(item), None, edits);
    }
    let order = |list: &Items<'a>, other: &Items<'a>| -> Vec<Value> {
        let stays = list.iter().filter(|(name, _)| find(other, name).is_some());
        stays.map(|(name, _)| Value::from(name.as_str())).collect()
    };
    let (before, after) = (order(old, new), order(new, old));
    if before != after {
        edits.push(at.edit(Some(&Value::Array(before)), Some(&Value::Array(after))));
    }
}

/// Reports an environment variable that has only a value by that value.
fn one_item<'a>(at: &Location<'a>, old: Option<&'a Value>, new: Option<&'a Value>, edits: &mut Vec<Edit>) {
    let is_variable = at.steps.len() > 1 && at.steps[at.steps.len() - 2] == "env";
    let plain = |item: Option<&'a Value>| match item.and_then(Value::as_object) {
        Some(fields) if fields.keys().all(|key| key == "name" || key == "value") => Some(fields.get("value")),
        Some(_) => None,
        None => Some(None),
    };
    match (plain(old), plain(new)) {
        (Some(before), Some(after)) if is_variable && before != after => edits.push(at.edit(before, after)),
        _ => compare(at, old, new, edits),
    }
}

#[cfg(test)]
mod tests;
