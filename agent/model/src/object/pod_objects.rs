//! The current versions of the objects one pod refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::object::{ObjectKey, ObjectKind, ObjectRecord, references};
use crate::pod::PodRecord;

/// The objects of a source that one pod refers to, without missing ones. Two are equal if they give the pod the same
/// values.
#[derive(Debug, Clone, Default)]
pub struct PodObjects(BTreeMap<ObjectKey, Arc<ObjectRecord>>);

impl PodObjects {
    /// The pod's objects among all of its source's; `find` looks one up.
    pub fn of(pod: &PodRecord, find: impl Fn(&ObjectKey) -> Option<Arc<ObjectRecord>>) -> Self {
        let found = |key: ObjectKey| find(&key).map(|object| (key, object));
        Self(references(pod).into_iter().filter_map(found).collect())
    }

    /// The object of that kind and name; all are in the pod's namespace.
    pub fn get(&self, kind: ObjectKind, name: &str) -> Option<&Arc<ObjectRecord>> {
        self.0.values().find(|object| object.key.kind == kind && *object.key.name == *name)
    }

    /// `text` without the values of Secrets: an error of another program may quote a command that contains one. Values of
    /// fewer than four bytes are kept: they are no secret, and occur in ordinary words.
    pub fn redact(&self, text: String) -> String {
        let secrets = self.0.values().filter(|object| object.key.kind == ObjectKind::Secret);
        let values = secrets.flat_map(|object| object.data.values()).filter_map(|entry| entry.bytes.expose_text());
        values.filter(|value| value.len() >= 4).fold(text, |text, value| match text.contains(value) {
            true => text.replace(value, "***"),
            false => text,
        })
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ObjectRecord>> {
        self.0.values()
    }
}

impl PartialEq for PodObjects {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&Arc<ObjectRecord>, &Arc<ObjectRecord>)| {
            Arc::ptr_eq(a, b) || (a.key == b.key && a.same_content(b))
        };
        self.0.len() == other.0.len() && self.0.values().zip(other.0.values()).all(same)
    }
}

impl Eq for PodObjects {}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use crate::object::pod_objects::*;

    #[test]
    fn values_of_secrets_are_redacted_from_a_text() {
        let decode = |kind: ObjectKind, data: serde_json::Value| {
            let field = if kind == ObjectKind::Secret { "stringData" } else { "data" };
            let value = json!({"metadata": {"name": "o"}, field: data});
            let object = super::super::decode(&value, kind, Arc::from("f.yaml")).0.unwrap();
            (object.key.clone(), Arc::new(object))
        };
        let objects = PodObjects(BTreeMap::from([
            decode(ObjectKind::Secret, json!({"a": "hunter2", "short": "ab"})),
            decode(ObjectKind::ConfigMap, json!({"a": "plain"})),
        ]));
        let text = "exec: \"hunter2\" not found, about plain hunter2".to_owned();
        assert_eq!(objects.redact(text), "exec: \"***\" not found, about plain ***");
        assert!(objects.iter().count() == 2 && !format!("{objects:?}").contains("hunter2"));
    }
}
