//! What a generation consists of: the pods and objects of a source, as far as the policy covers them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use limpet_core::source::SourceSnapshot;
use limpet_model::object::workload::Additions;
use limpet_model::object::{ObjectKey, ObjectRecord, references};
use limpet_model::pod::{PodKey, PodRecord};

use crate::settings::Policy;

/// A pod or an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ItemKey {
    Pod(PodKey),
    Object(ObjectKey),
}

impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod {key}"),
            Self::Object(key) => write!(f, "{key}"),
        }
    }
}

/// Pods and objects of a source. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pub pods: OrdMap<PodKey, Arc<PodRecord>>,
    pub objects: OrdMap<ObjectKey, Arc<ObjectRecord>>,
}

impl Content {
    /// What a snapshot has of what the policy covers. A pod that is being deleted is not part of it.
    pub fn from_snapshot(snapshot: &SourceSnapshot, policy: Policy) -> Self {
        let mut content = Self { pods: snapshot.pods.clone(), objects: snapshot.objects.clone() };
        for key in snapshot.pods.iter().filter(|(_, record)| record.is_deleting()).map(|(key, _)| key) {
            content.pods.remove(key);
        }
        if policy == Policy::Pods {
            for key in snapshot.objects.keys().filter(|key| !key.kind.is_workload()) {
                content.objects.remove(key);
            }
        }
        content
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.objects.is_empty()
    }

    /// Whether both have the same manifests, wherever these come from.
    pub fn same(&self, other: &Self) -> bool {
        self.differences(other).next().is_none()
    }

    /// What is in one only, or differs. Costs what the maps do not share.
    pub(crate) fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = ItemKey> + 'a {
        let pods = self.pods.diff(&other.pods).filter_map(|item| match item {
            DiffItem::Update { old: (_, old), new: (_, new) } if same_pod(old, new) => None,
            DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => {
                Some(ItemKey::Pod(key.clone()))
            }
        });
        let objects = self.objects.diff(&other.objects).filter_map(|item| match item {
            DiffItem::Update { old: (_, old), new: (_, new) } if same_object(old, new) => None,
            DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => {
                Some(ItemKey::Object(key.clone()))
            }
        });
        pods.chain(objects)
    }

    /// The pods and workloads whose pods have to be judged: the items whose condition says whether it works.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = ItemKey> + '_ {
        let workloads = self.objects.keys().filter(|key| key.kind.is_workload()).cloned().map(ItemKey::Object);
        self.pods.keys().cloned().map(ItemKey::Pod).chain(workloads)
    }

    /// A pod of each of these subjects, as it is or as its controller makes it.
    pub(crate) fn samples<'a>(
        &'a self,
        subjects: impl IntoIterator<Item = ItemKey> + 'a,
        node_name: &'a str,
    ) -> impl Iterator<Item = Arc<PodRecord>> + 'a {
        subjects.into_iter().filter_map(move |subject| match subject {
            ItemKey::Pod(key) => self.pods.get(&key).cloned(),
            ItemKey::Object(key) => self.objects.get(&key).and_then(|object| sample(object, node_name)).map(Arc::new),
        })
    }

    /// The subjects that differ from those of `before`, or refer to an object that does.
    pub(crate) fn changed_subjects(&self, before: &Self, node_name: &str) -> BTreeSet<ItemKey> {
        let changed: BTreeSet<ItemKey> = before.differences(self).collect();
        let objects: BTreeSet<&ObjectKey> = changed
            .iter()
            .filter_map(|item| match item {
                ItemKey::Object(key) if !key.kind.is_workload() => Some(key),
                _ => None,
            })
            .collect();
        let refers = |subject: &ItemKey| {
            let mut samples = self.samples([subject.clone()], node_name);
            samples.any(|record| references(&record).iter().any(|key| objects.contains(key)))
        };
        self.subjects()
            .filter(|subject| changed.contains(subject) || (!objects.is_empty() && refers(subject)))
            .collect()
    }
}

/// Whether both were made of the same manifest.
pub(crate) fn same_pod(a: &PodRecord, b: &PodRecord) -> bool {
    a.fingerprint == b.fingerprint
}

/// Whether both give pods the same.
pub(crate) fn same_object(a: &ObjectRecord, b: &ObjectRecord) -> bool {
    a.immutable == b.immutable && a.same_content(b)
}

/// A pod as the workload's controller makes it.
fn sample(object: &ObjectRecord, node_name: &str) -> Option<PodRecord> {
    let (key, workload) = (&object.key, object.workload.as_ref()?);
    let controller = (key.kind.api_version(), key.kind.as_str(), &*key.name);
    // The name is of nothing that runs.
    let origin = (&object.origin, limpet_model::source::SourceKind::File, node_name);
    workload.template.pod(key, &key.name, &Additions::default(), controller, origin).ok()
}
