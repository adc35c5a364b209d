//! Index of the pods that refer to each ConfigMap and Secret: an edit of an object affects only those pods.

use imbl::{OrdMap, OrdSet};
use limpet_model::object::{ObjectKey, references};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// The desired pods by the objects of their source that they refer to, existing or not. Clones share structure.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReferenceIndex([OrdMap<ObjectKey, OrdSet<PodKey>>; SourceKind::ALL.len()]);

impl ReferenceIndex {
    /// Updates the index when the desired version of one key changes from `old` to `new`.
    pub(super) fn replace(&mut self, old: Option<&PodRecord>, new: Option<&PodRecord>) {
        if let Some(record) = old {
            let index = &mut self.0[record.source.index()];
            for object in references(record) {
                if let Some(pods) = index.get_mut(&object) {
                    pods.remove(&record.key);
                    if pods.is_empty() {
                        index.remove(&object);
                    }
                }
            }
        }
        if let Some(record) = new {
            let index = &mut self.0[record.source.index()];
            for object in references(record) {
                index.entry(object).or_default().insert(record.key.clone());
            }
        }
    }

    /// The pods that refer to an object of `source`.
    pub(super) fn pods(&self, source: SourceKind, object: &ObjectKey) -> impl Iterator<Item = &PodKey> {
        self.0[source.index()].get(object).into_iter().flatten()
    }

    /// Every object of `source` that pods refer to, with these pods.
    pub(super) fn of_source(&self, source: SourceKind) -> &OrdMap<ObjectKey, OrdSet<PodKey>> {
        &self.0[source.index()]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::table::MergeTable;
    use super::*;
    use crate::source::Snapshots;
    use crate::source::SourceSnapshot;
    use limpet_model::object::{ObjectKind, ObjectRecord};

    /// A pod that mounts the ConfigMaps `maps`.
    fn pod(name: &str, maps: &[&str], source: SourceKind) -> Arc<PodRecord> {
        let volumes: Vec<Value> =
            maps.iter().map(|map| json!({"name": format!("v-{map}"), "configMap": {"name": map}})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}});
        Arc::new(limpet_model::manifest::restore(pod.to_string().as_bytes(), "f.yaml", source, "node").unwrap())
    }

    fn map(name: &str, value: &str) -> Arc<ObjectRecord> {
        let value = json!({"metadata": {"name": name}, "data": {"k": value}});
        Arc::new(limpet_model::object::decode(&value, ObjectKind::ConfigMap, Arc::from("f.yaml")).0.unwrap())
    }

    fn view(pods: &[Arc<PodRecord>], objects: &[Arc<ObjectRecord>]) -> Arc<SourceSnapshot> {
        Arc::new(SourceSnapshot {
            pods: pods.iter().map(|pod| (pod.key.clone(), Arc::clone(pod))).collect(),
            objects: objects.iter().map(|object| (object.key.clone(), Arc::clone(object))).collect(),
            ready: true,
            ..SourceSnapshot::default()
        })
    }

    /// Merges these snapshots of file and http. Returns the verbs, and the pods whose objects changed.
    fn absorb(
        table: &mut MergeTable,
        file: Arc<SourceSnapshot>,
        http: Arc<SourceSnapshot>,
    ) -> (Vec<&'static str>, Vec<String>) {
        let mut snapshots = Snapshots::default();
        snapshots[SourceKind::File.index()] = file;
        snapshots[SourceKind::Http.index()] = http;
        let delta = table.absorb(snapshots);
        let verbs = delta.changes.iter().map(super::super::PodChange::verb).collect();
        (verbs, delta.objects_changed.iter().map(|key| key.name().to_owned()).collect())
    }

    fn value(table: &MergeTable, pod: &PodRecord, map: &str) -> Option<String> {
        let objects = table.desired().objects_of(pod);
        let object = objects.get(ObjectKind::ConfigMap, map)?;
        Some(object.data["k"].bytes.expose_text().unwrap().to_owned())
    }

    #[test]
    fn an_edited_object_affects_only_pods_of_its_source_that_refer_to_it() {
        let mut table = MergeTable::default();
        let (a, b, other) = (
            pod("a", &["x", "y"], SourceKind::File),
            pod("b", &["y"], SourceKind::File),
            pod("other", &["x"], SourceKind::Http),
        );
        let pods = [Arc::clone(&a), Arc::clone(&b)];
        let (x, y) = (map("x", "1"), map("y", "1"));
        let none = Arc::<SourceSnapshot>::default;
        let http = view(&[Arc::clone(&other)], &[]);
        absorb(&mut table, view(&pods, &[Arc::clone(&x)]), Arc::clone(&http));
        assert_eq!(
            (value(&table, &a, "x").as_deref(), value(&table, &a, "y"), value(&table, &other, "x")),
            (Some("1"), None, None)
        );

        // An object is added, one is changed, one without references is added, nothing changes, and one is removed.
        let no_verbs: Vec<&str> = Vec::new();
        assert_eq!(
            absorb(&mut table, view(&pods, &[Arc::clone(&x), Arc::clone(&y)]), Arc::clone(&http)),
            (no_verbs.clone(), vec!["a-node".to_owned(), "b-node".to_owned()])
        );
        let edited = map("x", "2");
        assert_eq!(
            absorb(&mut table, view(&pods, &[Arc::clone(&edited), Arc::clone(&y)]), Arc::clone(&http)),
            (no_verbs.clone(), vec!["a-node".to_owned()])
        );
        assert_eq!(value(&table, &a, "x").as_deref(), Some("2"));
        let unused = map("z", "1");
        let nothing = (no_verbs.clone(), Vec::<String>::new());
        let all = [Arc::clone(&edited), Arc::clone(&y), unused];
        assert_eq!(absorb(&mut table, view(&pods, &all), Arc::clone(&http)), nothing);
        assert_eq!(absorb(&mut table, view(&pods, &all), http), nothing);
        assert_eq!(
            absorb(&mut table, view(&pods, &[edited]), none()),
            (vec!["REMOVE"], vec!["a-node".to_owned(), "b-node".to_owned()])
        );

        // A pod that no longer refers to the object is not affected.
        let without = [pod("a", &["x"], SourceKind::File), Arc::clone(&b)];
        absorb(&mut table, view(&without, &[]), none());
        let (_, affected) = absorb(&mut table, view(&without, &[y]), none());
        assert_eq!(affected, ["b-node"]);
        absorb(&mut table, none(), none());
        let mut index = ReferenceIndex::default();
        index.replace(None, Some(&a));
        index.replace(Some(&a), None);
        assert!(index.0.iter().all(OrdMap::is_empty));
    }

    #[test]
    fn a_source_sees_what_its_pods_refer_to_and_what_of_it_is_missing() {
        let mut table = MergeTable::default();
        let demand = |table: &MergeTable, source| {
            table.desired().demand(source).keys().map(|key| key.name.to_string()).collect::<Vec<_>>()
        };
        let missing = |table: &MergeTable, source| {
            let missing = table.desired().missing_objects(source);
            missing.map(|(key, pods)| (key.name.to_string(), pods.len())).collect::<Vec<_>>()
        };
        let pods = [pod("a", &["x", "y"], SourceKind::File), pod("b", &["y"], SourceKind::File)];
        let http = view(&[pod("other", &["x"], SourceKind::Http)], &[]);
        absorb(&mut table, view(&pods, &[map("x", "1"), map("z", "1")]), Arc::clone(&http));
        assert_eq!(demand(&table, SourceKind::File), ["x", "y"]);
        assert_eq!(missing(&table, SourceKind::File), [("y".to_owned(), 2)]);
        assert_eq!(missing(&table, SourceKind::Http), [("x".to_owned(), 1)], "objects are of one source alone");
        let before = table.desired().clone();
        absorb(&mut table, view(&pods[1..], &[map("x", "2")]), http);
        assert_eq!(demand(&table, SourceKind::File), ["y"]);
        assert_eq!(missing(&table, SourceKind::File), [("y".to_owned(), 1)]);
        assert_eq!(before.demand(SourceKind::File).len(), 2, "a snapshot stays as it is");
    }
}
