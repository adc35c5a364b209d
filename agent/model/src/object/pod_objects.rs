//! The current versions of the objects one pod refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::object::claim::CsiCall;
use crate::object::{ObjectKey, ObjectKind, ObjectRecord, pod_certificate, references};
use crate::pod::PodRecord;

/// What is known of one object.
#[derive(Debug, Clone)]
pub enum ObjectState {
    /// It exists, in this version.
    Known(Arc<ObjectRecord>),
    /// Its source does not define it.
    Absent,
    /// Its source has not reported on it yet.
    Unknown,
}

impl From<Option<Arc<ObjectRecord>>> for ObjectState {
    fn from(found: Option<Arc<ObjectRecord>>) -> Self {
        found.map_or(Self::Absent, Self::Known)
    }
}

/// The objects of a source that one pod refers to. Two are equal if they give the pod the same values.
#[derive(Debug, Clone, Default)]
pub struct PodObjects(BTreeMap<ObjectKey, ObjectState>);

impl PodObjects {
    /// The pod's objects among all of its source's; `find` looks one up.
    pub fn of<S: Into<ObjectState>>(pod: &PodRecord, find: impl Fn(&ObjectKey) -> S) -> Self {
        let with_state = |key: ObjectKey| {
            let state = find(&key).into();
            (key, state)
        };
        Self(references(pod).into_iter().map(with_state).collect())
    }

    /// The pod's objects before its source has reported any.
    pub fn unknown(pod: &PodRecord) -> Self {
        Self::of(pod, |_| ObjectState::Unknown)
    }

    /// Whether any is not known yet.
    pub fn has_unknown(&self) -> bool {
        self.0.values().any(|state| matches!(state, ObjectState::Unknown))
    }

    /// The first of `keys` that is not known yet.
    pub fn first_unknown(&self, keys: impl IntoIterator<Item = ObjectKey>) -> Option<ObjectKey> {
        keys.into_iter().find(|key| matches!(self.0.get(key), Some(ObjectState::Unknown)))
    }

    /// The object of that kind and name; all but the apiserver's own Service are in the pod's namespace.
    pub fn get(&self, kind: ObjectKind, name: &str) -> Option<&Arc<ObjectRecord>> {
        self.iter().find(|object| object.key.kind == kind && *object.key.name == *name)
    }

    /// `text` without the values of Secrets: an error of another program may quote a command that contains one. Values of
    /// fewer than four bytes are kept: they are no secret, and occur in ordinary words.
    pub fn redact(&self, text: String) -> String {
        let entries =
            self.iter().flat_map(|object| object.data.iter().map(|(name, entry)| (object.key.kind, name, entry)));
        let secrets = entries.filter(|(kind, name, _)| match kind {
            ObjectKind::Secret | ObjectKind::ServiceAccountToken => true,
            ObjectKind::PodCertificate => pod_certificate::is_secret(name),
            ObjectKind::VolumeClaim => CsiCall::is_secret(name),
            ObjectKind::ConfigMap
            | ObjectKind::ServiceVariables
            | ObjectKind::TrustBundle
            | ObjectKind::RuntimeClass => false,
        });
        let values = secrets.filter_map(|(_, _, entry)| entry.bytes.expose_text());
        values.filter(|value| value.len() >= 4).fold(text, |text, value| match text.contains(value) {
            true => text.replace(value, "***"),
            false => text,
        })
    }

    /// All objects that exist.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ObjectRecord>> {
        self.0.values().filter_map(|state| match state {
            ObjectState::Known(object) => Some(object),
            ObjectState::Absent | ObjectState::Unknown => None,
        })
    }
}

impl PartialEq for ObjectState {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => Arc::ptr_eq(a, b) || (a.key == b.key && a.same_content(b)),
            (Self::Absent, Self::Absent) | (Self::Unknown, Self::Unknown) => true,
            _ => false,
        }
    }
}

impl PartialEq for PodObjects {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
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
            (object.key.clone(), ObjectState::Known(Arc::new(object)))
        };
        let objects = PodObjects(BTreeMap::from([
            decode(ObjectKind::Secret, json!({"a": "hunter2", "short": "ab"})),
            decode(ObjectKind::ConfigMap, json!({"a": "plain"})),
        ]));
        let text = "exec: \"hunter2\" not found, about plain hunter2".to_owned();
        assert_eq!(objects.redact(text), "exec: \"***\" not found, about plain ***");
        assert!(objects.iter().count() == 2 && !format!("{objects:?}").contains("hunter2"));
    }

    #[test]
    fn an_object_is_known_absent_or_not_known_yet() {
        let pod = crate::fixtures::record_of_spec(json!({"containers": [], "volumes": [
            {"name": "a", "configMap": {"name": "a"}}, {"name": "b", "configMap": {"name": "b"}},
        ]}));
        let keys = || references(&pod);
        let before = PodObjects::unknown(&pod);
        assert_eq!(before.first_unknown(keys()).unwrap().to_string(), "ConfigMap shop/a");
        let without = |state: fn() -> ObjectState| {
            PodObjects::of(&pod, |key| if &*key.name == "a" { ObjectState::Absent } else { state() })
        };
        let half = without(|| ObjectState::Unknown);
        assert_eq!(half.first_unknown(keys()).unwrap().to_string(), "ConfigMap shop/b");
        let none = without(|| ObjectState::Absent);
        assert!(before.has_unknown() && half.has_unknown() && !none.has_unknown());
        assert_eq!(none.first_unknown(keys()), None);
        assert_eq!(none.get(ObjectKind::ConfigMap, "a"), None);
        assert!(before != half && half != none && none == PodObjects::of(&pod, |_| None));
    }
}
