//! What the simulated apiserver keeps, with the versions and the changes that watches are sent.

use std::collections::{BTreeMap, VecDeque};

use hyper::http::Method;
use serde_json::{Value, json};

use super::PODS;

/// One change, as watches send it.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: &'static str,
    path: String,
    pub(super) object: Value,
}

/// A backup: the version, and the objects by their paths.
pub(crate) type Backup = (u64, BTreeMap<String, Value>);

/// The objects by their paths.
#[derive(Debug, Default)]
pub(super) struct Objects {
    version: u64,
    objects: BTreeMap<String, Value>,
    changes: Vec<Change>,
    /// Watches cannot begin before it.
    oldest: u64,
    uids: u64,
}

impl Objects {
    /// None yet, in a cluster that has come to some version.
    pub(super) fn new() -> Self {
        Self { version: 100, ..Self::default() }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.objects.get(path).cloned()
    }

    /// The objects whose paths begin so, by their names.
    pub(super) fn below(&self, prefix: &str) -> BTreeMap<String, Value> {
        let all = self.objects.iter().filter(|(path, _)| path.starts_with(prefix));
        all.map(|(path, object)| (path[prefix.len()..].to_owned(), object.clone())).collect()
    }

    /// Whether a watch cannot begin at that version any more.
    pub(super) fn is_forgotten(&self, version: u64) -> bool {
        version < self.oldest
    }

    pub(super) fn compact(&mut self) {
        self.oldest = self.version;
    }

    pub(super) fn back_up(&self) -> Backup {
        (self.version, self.objects.clone())
    }

    /// Everything is as it was then, and nothing is known of changes from before.
    pub(super) fn restore(&mut self, (version, objects): Backup) {
        (self.version, self.objects, self.oldest) = (version, objects, version);
        self.changes.clear();
    }

    pub(super) fn next_change(&self, from: u64, prefix: &str, name: Option<&str>) -> Option<Change> {
        let matches = |change: &&Change| {
            change.version > from
                && change.path.starts_with(prefix)
                && name.is_none_or(|name| change.path.rsplit('/').next() == Some(name))
        };
        self.changes.iter().find(matches).cloned()
    }

    pub(super) fn serve(
        &mut self,
        method: &Method,
        path: &str,
        query: &BTreeMap<String, String>,
        body: Value,
    ) -> (u16, Value) {
        let (object_path, is_status) = match path.strip_suffix("/status") {
            Some(object) => (object.to_owned(), true),
            None => (path.to_owned(), false),
        };
        match *method {
            Method::GET if query.contains_key("fieldSelector") => self.list(path, query),
            Method::GET => match self.objects.get(&object_path) {
                Some(object) => (200, object.clone()),
                None => absent(),
            },
            Method::POST => self.create(path, body),
            Method::PATCH => self.patch(&object_path, body, is_status),
            Method::DELETE => self.delete(&object_path, &body),
            _ => (405, failure(405, "MethodNotAllowed", "no")),
        }
    }

    fn list(&self, path: &str, query: &BTreeMap<String, String>) -> (u16, Value) {
        let (prefix, name) = (prefix(path), selected_name(query));
        let matches = |path: &String| {
            path.starts_with(&prefix) && name.as_ref().is_none_or(|name| path.rsplit('/').next() == Some(name))
        };
        let items: Vec<&Value> =
            self.objects.iter().filter(|(path, _)| matches(path)).map(|(_, object)| object).collect();
        (200, json!({ "kind": "List", "metadata": { "resourceVersion": self.version.to_string() }, "items": items }))
    }

    /// What a list has, as the beginning of a watch.
    pub(super) fn all_as_changes(&self, path: &str, query: &BTreeMap<String, String>) -> VecDeque<Value> {
        let (_, mut list) = self.list(path, query);
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let added = items.into_iter().map(|object| json!({ "type": "ADDED", "object": object }));
        let metadata = json!({
            "resourceVersion": list["metadata"]["resourceVersion"],
            "annotations": { "k8s.io/initial-events-end": "true" },
        });
        let end = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata });
        added.chain([json!({ "type": "BOOKMARK", "object": end })]).collect()
    }

    fn create(&mut self, path: &str, mut object: Value) -> (u16, Value) {
        let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else {
            return (422, failure(422, "Invalid", "no name"));
        };
        let path = format!("{path}/{name}");
        if self.objects.contains_key(&path) {
            return (409, failure(409, "AlreadyExists", "it is there"));
        }
        if path.starts_with(PODS) {
            object["status"] = json!({ "phase": "Pending" });
        }
        (201, self.put(&path, object))
    }

    fn patch(&mut self, path: &str, patch: Value, is_status: bool) -> (u16, Value) {
        let Some(before) = self.objects.get(path) else { return absent() };
        let uid = &patch["metadata"]["uid"];
        if uid.is_string() && *uid != before["metadata"]["uid"] {
            return (409, failure(409, "Conflict", "another UID"));
        }
        let version = &patch["metadata"]["resourceVersion"];
        if version.is_string() && *version != before["metadata"]["resourceVersion"] {
            return (409, failure(409, "Conflict", "the object has been modified"));
        }
        let mut object = before.clone();
        match is_status {
            true => merge(&mut object["status"], &patch["status"]),
            false => merge(&mut object, &patch),
        }
        if object == *before {
            return (200, object);
        }
        (200, self.put(path, object))
    }

    fn delete(&mut self, path: &str, options: &Value) -> (u16, Value) {
        let Some(before) = self.objects.get(path) else { return absent() };
        let uid = &options["preconditions"]["uid"];
        if uid.is_string() && *uid != before["metadata"]["uid"] {
            return (409, failure(409, "Conflict", "another UID"));
        }
        self.remove(path);
        (200, json!({ "kind": "Status", "status": "Success" }))
    }

    pub(super) fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        if !object["metadata"]["uid"].is_string() {
            self.uids += 1;
            object["metadata"]["uid"] = json!(format!("{:08x}-0000-4000-8000-{:012x}", 0, self.uids));
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.changes.push(Change { version: self.version, kind, path: path.to_owned(), object: object.clone() });
        object
    }

    pub(super) fn remove(&mut self, path: &str) {
        let Some(mut object) = self.objects.remove(path) else { return };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change { version: self.version, kind: "DELETED", path: path.to_owned(), object });
    }
}

/// Kubernetes' strategic merge, as far as statuses need it: conditions are merged by their types.
fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
                match (key.as_str(), value) {
                    (_, Value::Null) => drop(base.remove(key)),
                    ("conditions", Value::Array(conditions)) => {
                        merge_conditions(base.entry(key).or_insert(json!([])), conditions)
                    }
                    _ => merge(base.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

fn merge_conditions(base: &mut Value, patch: &[Value]) {
    let Value::Array(base) = base else { return };
    for condition in patch {
        let at = base.iter().position(|known| known["type"] == condition["type"]);
        match (condition["$patch"] == "delete", at) {
            (true, Some(at)) => drop(base.remove(at)),
            (true, None) => {}
            (false, Some(at)) => merge(&mut base[at], condition),
            (false, None) => base.push(condition.clone()),
        }
    }
}

/// How the paths of a collection's objects begin. Pods of all namespaces are those of the only one.
pub(super) fn prefix(path: &str) -> String {
    if path == "/api/v1/pods" { format!("{PODS}/") } else { format!("{path}/") }
}

pub(super) fn selected_name(query: &BTreeMap<String, String>) -> Option<String> {
    query.get("fieldSelector")?.strip_prefix("metadata.name=").map(str::to_owned)
}

fn absent() -> (u16, Value) {
    (404, failure(404, "NotFound", "there is none"))
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    let details = if code == 429 { json!({ "retryAfterSeconds": 1 }) } else { json!({}) };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    })
}
