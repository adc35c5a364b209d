//! The current versions of the objects one pod refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::object::{ObjectKey, ObjectKind, ObjectRecord};

/// What is known about one object.
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
    fn from(record: Option<Arc<ObjectRecord>>) -> Self {
        record.map_or(Self::Absent, Self::Known)
    }
}

/// The objects of a source that one pod refers to. Two are equal if they give the pod the same values.
#[derive(Debug, Clone, Default)]
pub struct PodObjects(pub(super) BTreeMap<ObjectKey, ObjectState>);

impl PodObjects {
    /// Whether any is not known yet.
    pub fn has_unknown(&self) -> bool {
        self.0.values().any(|state| matches!(state, ObjectState::Unknown))
    }

    /// The first of `keys` that is not known yet.
    pub fn first_unknown(&self, keys: impl IntoIterator<Item = ObjectKey>) -> Option<ObjectKey> {
        keys.into_iter().find(|key| matches!(self.0.get(key), Some(ObjectState::Unknown)))
    }

    /// The object of that kind and name. All but the apiserver's own Service are in the pod's namespace.
    pub fn get(&self, kind: ObjectKind, name: &str) -> Option<&Arc<ObjectRecord>> {
        self.iter().find(|object| object.key.kind == kind && *object.key.name == *name)
    }

    /// The same and one more object.
    #[must_use]
    pub fn with(&self, object: Arc<ObjectRecord>) -> Self {
        let mut all = self.clone();
        all.0.insert(object.key.clone(), ObjectState::Known(object));
        all
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
    use crate::object::references;

    #[test]
    fn an_object_is_known_absent_or_not_known_yet() {
        let pod = crate::fixtures::record_of_spec(json!({"containers": [], "volumes": [
            {"name": "a", "configMap": {"name": "a"}}, {"name": "b", "configMap": {"name": "b"}},
        ]}));
        let keys = || references(&pod);
        let before = PodObjects::unknown(&pod);
        assert_eq!(before.first_unknown(keys()).unwrap().to_string(), "ConfigMap shop/a");
        let without = |state: fn() -> ObjectState| {
            PodObjects::collect(&pod, |key| if &*key.name == "a" { ObjectState::Absent } else { state() })
        };
        let half = without(|| ObjectState::Unknown);
        assert_eq!(half.first_unknown(keys()).unwrap().to_string(), "ConfigMap shop/b");
        let none = without(|| ObjectState::Absent);
        assert!(before.has_unknown() && half.has_unknown() && !none.has_unknown());
        assert_eq!(none.first_unknown(keys()), None);
        assert_eq!(none.get(ObjectKind::ConfigMap, "a"), None);
        assert!(before != half && half != none && none == PodObjects::collect(&pod, |_| None));
    }
}
