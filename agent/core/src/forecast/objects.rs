//! Predicted changes of ConfigMaps, Secrets and workloads, and the pods they affect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::merge::DesiredPods;
use crate::source::Snapshots;
use k8s_openapi::api::core::v1::Container;
use limpet_model::object::{Entry, ObjectKey, ObjectKind, ObjectRecord, PodObjects, StartValues, mounted, references};
use limpet_model::pod::restart_on_change::RestartOnChange;
use limpet_model::pod::{PodKey, edits_between};
use limpet_model::source::SourceKind;

/// One changed value of an object. Values of Secrets, and values that are not text, are not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueChange {
    pub key: String,
    /// Whether it existed before, and its text if shown.
    pub old: Option<Option<String>>,
    /// Whether it would exist, and its text if shown.
    pub new: Option<Option<String>>,
}

#[derive(Debug, Clone)]
pub struct ObjectForecast {
    /// The source it belongs to.
    pub source: SourceKind,
    /// The current version; `None`: it is added.
    pub old: Option<Arc<ObjectRecord>>,
    /// The new version; `None`: it is removed.
    pub new: Option<Arc<ObjectRecord>>,
    /// The values that differ.
    pub values: Vec<ValueChange>,
    /// Pods with volume files made from it, which are updated at once.
    pub files_of: Vec<PodKey>,
    /// Pods that use it only from the next start of a container on.
    pub starts_of: Vec<PodKey>,
    /// The containers that are restarted for it, because their pods want that: by pod.
    pub restarts: Vec<(PodKey, Vec<String>)>,
}

impl ObjectForecast {
    /// The version that identifies it.
    pub fn record(&self) -> Option<&Arc<ObjectRecord>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// Every object whose content differs.
pub(super) fn changes(before: &Snapshots, after: &Snapshots, will: &DesiredPods) -> Vec<ObjectForecast> {
    let mut changes = Vec::new();
    for source in SourceKind::ALL {
        let (old, new) = (&before[source.index()].objects, &after[source.index()].objects);
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (old.get(key), new.get(key));
            let same = old.zip(new).is_some_and(|(old, new)| old.same_content(new));
            if !same {
                let restarts = restarts(source, key, before, after, will);
                changes.push(ObjectForecast { restarts, ..change(source, key, old, new, will) });
            }
        }
    }
    changes
}

fn change(
    source: SourceKind,
    key: &ObjectKey,
    old: Option<&Arc<ObjectRecord>>,
    new: Option<&Arc<ObjectRecord>>,
    will: &DesiredPods,
) -> ObjectForecast {
    let affected = will.pods.values().filter(|pod| pod.source == source && references(pod).contains(key));
    let (files_of, starts_of): (Vec<_>, Vec<_>) = affected.partition(|pod| mounted(pod).contains(key));
    let keys = |pods: Vec<_>| pods.into_iter().map(|pod: &Arc<limpet_model::pod::PodRecord>| pod.key.clone()).collect();
    ObjectForecast {
        source,
        old: old.cloned(),
        new: new.cloned(),
        values: match key.kind.is_workload()
            || matches!(key.kind, ObjectKind::PersistentVolumeClaim | ObjectKind::Service)
        {
            true => fields(old, new),
            false => values(key.kind, old, new),
        },
        files_of: keys(files_of),
        starts_of: keys(starts_of),
        restarts: Vec::new(),
    }
}

/// The containers that have read values of an object at their start, if a change of them restarts them.
fn restarts(
    source: SourceKind,
    key: &ObjectKey,
    before: &Snapshots,
    after: &Snapshots,
    will: &DesiredPods,
) -> Vec<(PodKey, Vec<String>)> {
    let (before, after) = (&before[source.index()].objects, &after[source.index()].objects);
    let users = will.pods.values().filter(|pod| pod.source == source && references(pod).contains(key));
    let restarts = users.filter_map(|pod| {
        let wanted = RestartOnChange::from_pod(pod);
        let old = PodObjects::collect(pod, |key| before.get(key).cloned());
        // Other objects count with their own change.
        let new = PodObjects::collect(pod, |other| if other == key { after } else { before }.get(other).cloned());
        let is_restarted = |container: &&Container| {
            let values = |objects| StartValues::new(pod, container, objects);
            wanted.is_wanted() && values(&new).demand_restart(values(&old), wanted)
        };
        let runs_once = |container: &Container| container.restart_policy.as_deref() != Some("Always");
        let sidecars = pod.spec().init_containers.iter().flatten().filter(|init| !runs_once(init));
        let containers = sidecars.chain(&pod.spec().containers).filter(is_restarted);
        let names: Vec<String> = containers.map(|container| container.name.clone()).collect();
        (!names.is_empty()).then(|| (pod.key.clone(), names))
    });
    restarts.collect()
}

/// The fields of a workload, claim or Service that differ, unless it is new or gone.
fn fields(old: Option<&Arc<ObjectRecord>>, new: Option<&Arc<ObjectRecord>>) -> Vec<ValueChange> {
    let Some((old, new)) = old.zip(new) else { return Vec::new() };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text),
        other => Some(other.to_string()),
    };
    let edits = edits_between(&old.manifest(), &new.manifest()).into_iter();
    edits.map(|edit| ValueChange { key: edit.path, old: edit.old.map(text), new: edit.new.map(text) }).collect()
}

fn values(kind: ObjectKind, old: Option<&Arc<ObjectRecord>>, new: Option<&Arc<ObjectRecord>>) -> Vec<ValueChange> {
    static NONE: BTreeMap<String, Entry> = BTreeMap::new();
    let data = |object: Option<&'_ Arc<ObjectRecord>>| object.map_or(&NONE, |object| &object.data).clone();
    let (old, new) = (data(old), data(new));
    let shown = |entry: Option<&Entry>| {
        let text = |entry: &Entry| entry.bytes.expose_text().map(str::to_owned);
        entry.map(|entry| text(entry).filter(|_| kind == ObjectKind::ConfigMap && !entry.binary))
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    changed.map(|key| ValueChange { key: key.clone(), old: shown(old.get(key)), new: shown(new.get(key)) }).collect()
}
