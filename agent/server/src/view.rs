//! Converts snapshots to documents: pure, and without copying data that is only serialized.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Serialize;

use super::sources::SourceView;
use limpet_cluster::{ClusterView, Link};
use limpet_core::connectivity::Connectivity;
use limpet_core::merge::{DesiredPods, Duplicate};
use limpet_core::source::{Health, Rejection};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::object::ObjectKey;
use limpet_model::pod::{Fault, PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_telemetry::event::Event;
use limpet_wire::pods::rejection;
use limpet_wire::pods::{
    ContainerDocument, DescribeDocument, MissingObjectDocument, PodEntry, PodNames, RejectionDocument, SourceDocument,
};

/// A Pod for serialization, borrowed from the snapshots.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodView<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Cow<'a, ObjectMeta>,
    spec: Cow<'a, PodSpec>,
    status: Cow<'a, PodStatus>,
}

/// A Kubernetes list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodListView<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: BTreeMap<(), ()>,
    items: Vec<PodView<'a>>,
}

impl<'a> FromIterator<PodView<'a>> for PodListView<'a> {
    fn from_iter<I: IntoIterator<Item = PodView<'a>>>(pods: I) -> Self {
        Self { api_version: "v1", kind: "PodList", metadata: BTreeMap::new(), items: pods.into_iter().collect() }
    }
}

/// A pod as all routes see it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The worker's version, or else the source's.
    pub(super) record: Arc<PodRecord>,
    /// The worker's status; `None` until a worker has reported it.
    pub(super) observed: Option<Arc<ObservedPod>>,
    /// The text of the NOTE column.
    pub(super) note: Option<String>,
}

/// Every observed or desired pod, by key. Pods that only a source has are shown as pending.
pub(super) fn rows(observed: &ObservedPods, sources: &[SourceView], desired: &DesiredPods) -> BTreeMap<PodKey, Row> {
    let mut rows = BTreeMap::new();
    for (key, pod) in &observed.pods {
        rows.insert(key.clone(), Row::new(pod));
    }
    for source in sources {
        // A pod that is being deleted and has no worker any more is gone.
        for (key, record) in source.snapshot.pods.iter().filter(|(_, record)| !record.is_deleting()) {
            rows.entry(key.clone()).or_insert_with(|| Row { record: Arc::clone(record), observed: None, note: None });
        }
    }
    // Pods of workloads are in no source's snapshot.
    for (key, record) in desired.pods.iter().filter(|(_, record)| !record.is_deleting()) {
        rows.entry(key.clone()).or_insert_with(|| Row { record: Arc::clone(record), observed: None, note: None });
    }
    for source in sources {
        for rejection in source.snapshot.rejected.values() {
            for key in &rejection.kept {
                let Some(row) = rows.get_mut(key) else { continue };
                row.remark(format!("newer manifest rejected, see: limpet describe {}", row.record.key.name()));
            }
        }
    }
    for (key, duplicates) in &desired.duplicates {
        let Some(row) = rows.get_mut(key) else { continue };
        duplicates.iter().for_each(|duplicate| row.remark(claim_remark(key, duplicate)));
    }
    rows
}

/// Adds remarks to the pods that the apiserver does not show.
pub(super) fn remark_refused(rows: &mut BTreeMap<PodKey, Row>, cluster: Option<&Link>) {
    for (key, why) in cluster.map(|link| link.view().refused).unwrap_or_default() {
        if let Some(row) = rows.get_mut(&key) {
            row.remark(why);
        }
    }
}

/// The apiserver's source as it is shown: with its pods and the state of the connection.
pub(super) fn cluster(view: &ClusterView, source: SourceDocument) -> SourceDocument {
    let ClusterView { state, last_online, mirrors, refused, .. } = view;
    let (health, detail, last_good) = match state {
        Connectivity::Connecting => ("starting", String::new(), None),
        Connectivity::Online { .. } => ("good", format!("{mirrors} mirror pods"), Some(Timestamp::now())),
        Connectivity::Offline { cause, message, .. } => ("unavailable", format!("{cause}: {message}"), *last_online),
    };
    let remarks: Vec<String> =
        source.remark.into_iter().chain(refused.iter().map(|(key, why)| format!("{key}: {why}"))).collect();
    SourceDocument {
        health: health.to_owned(),
        detail,
        last_good: last_good.map(Time),
        remark: (!remarks.is_empty()).then(|| remarks.join("\n")),
        ..source
    }
}

/// The remark for the pod with this key about a claim that it won or lost.
fn claim_remark(key: &PodKey, duplicate: &Duplicate) -> String {
    if duplicate.winner.key == *key { duplicate.winner_message() } else { duplicate.loser_message() }
}

impl Row {
    /// An observed pod.
    pub(super) fn new(pod: &Arc<ObservedPod>) -> Self {
        Self { record: Arc::clone(&pod.record), observed: Some(Arc::clone(pod)), note: pod.note.clone() }
    }

    fn remark(&mut self, remark: String) {
        self.note = Some(match self.note.take() {
            Some(note) => format!("{note}; {remark}"),
            None => remark,
        });
    }

    /// The pod with its live status.
    pub(super) fn pod(&self) -> PodView<'_> {
        let record = &self.record;
        let mut metadata = Cow::Borrowed(&record.pod.metadata);
        let status = match &self.observed {
            Some(observed) => {
                if let Some(since) = observed.terminating_since {
                    let metadata = metadata.to_mut();
                    metadata.deletion_timestamp = Some(Time(since));
                    metadata.deletion_grace_period_seconds = i64::try_from(record.grace_seconds()).ok();
                }
                Cow::Owned(observed.status_with_resources())
            }
            None => Cow::Owned(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() }),
        };
        PodView { api_version: "v1", kind: "Pod", metadata, spec: Cow::Borrowed(record.spec()), status }
    }

    /// The pod as containerd has it: its names and the running containers, as in kubelet's `/runningpods/`. `None` if
    /// no container runs.
    pub(super) fn running(&self) -> Option<PodView<'_>> {
        let status = &self.observed.as_ref()?.status;
        let runs = |container: &&ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
        let lists = status.init_container_statuses.iter().chain(&status.container_statuses);
        let containers: Vec<Container> = lists
            .chain(&status.ephemeral_container_statuses)
            .flatten()
            .filter(runs)
            .map(|status| Container {
                name: status.name.clone(),
                image: Some(status.image.clone()),
                ..Container::default()
            })
            .collect();
        let metadata = ObjectMeta {
            name: Some(self.record.key.name().to_owned()),
            namespace: Some(self.record.key.namespace().to_owned()),
            uid: Some(self.record.uid.as_str().to_owned()),
            ..ObjectMeta::default()
        };
        (!containers.is_empty()).then(|| PodView {
            api_version: "v1",
            kind: "Pod",
            metadata: Cow::Owned(metadata),
            spec: Cow::Owned(PodSpec { containers, ..PodSpec::default() }),
            status: Cow::Owned(PodStatus::default()),
        })
    }

    /// The pod with the data that the Pod API has no field for.
    pub(super) fn entry(&self, node: &str) -> PodEntry<PodView<'_>> {
        PodEntry {
            source: self.record.source.to_string(),
            origin: self.record.origin.to_string(),
            manifest_name: self.manifest_name(node).to_owned(),
            fingerprint: self.record.fingerprint.to_string(),
            note: self.note.clone(),
            pod: self.pod(),
        }
    }

    /// The name in the manifest: a static pod's name without the node's suffix.
    fn manifest_name(&self, node: &str) -> &str {
        let name = self.record.key.name();
        if self.record.source.traits().is_stored {
            return name;
        }
        name.strip_suffix(node).and_then(|rest| rest.strip_suffix('-')).filter(|rest| !rest.is_empty()).unwrap_or(name)
    }

    /// The names of the pod and its containers.
    pub(super) fn names(&self, node: &str) -> PodNames {
        let spec = self.record.spec();
        let containers =
            spec.containers.iter().chain(spec.init_containers.iter().flatten()).chain(&self.record.ephemeral);
        PodNames {
            namespace: self.record.key.namespace().to_owned(),
            name: self.record.key.name().to_owned(),
            manifest_name: self.manifest_name(node).to_owned(),
            containers: containers.map(|container| container.name.clone()).collect(),
        }
    }

    /// All details of the pod.
    pub(super) fn describe<'a>(
        &'a self,
        node: &str,
        sources: &[SourceView],
        desired: &DesiredPods,
        events: &[Event],
    ) -> DescribeDocument<PodView<'a>> {
        let key = &self.record.key;
        let containers = self.observed.iter().flat_map(|observed| &observed.containers).map(|(name, container)| {
            let document = ContainerDocument {
                id: container.id.clone(),
                pid: container.pid,
                log_path: container.log_path.clone(),
            };
            (name.clone(), document)
        });
        let rejected = (sources.iter().flat_map(|source| source.snapshot.rejected.values()))
            .filter(|rejection| rejection.kept.contains(key))
            .map(|refused| rejection(refused))
            .collect();
        // The remark refers to this page for the rejected manifest, so it is not needed here.
        let note = self.observed.as_ref().and_then(|observed| observed.note.clone());
        DescribeDocument {
            entry: PodEntry { note, ..self.entry(node) },
            containers: containers.collect(),
            rejected,
            duplicates: (desired.duplicates.get(key).into_iter().flat_map(|duplicates| duplicates.iter()))
                .map(|duplicate| claim_remark(key, duplicate))
                .collect(),
            events: events.iter().filter(|event| is_about(event, key)).map(|each| each.as_kubernetes(node)).collect(),
            history: Vec::new(),
        }
    }
}

/// A pod as its source has it now, whatever its worker reports.
pub(super) fn authored(record: &PodRecord) -> PodView<'_> {
    PodView {
        api_version: "v1",
        kind: "Pod",
        metadata: Cow::Borrowed(&record.pod.metadata),
        spec: Cow::Borrowed(record.spec()),
        status: record.pod.status.as_ref().map_or_else(Cow::default, Cow::Borrowed),
    }
}

pub(super) fn is_about(event: &Event, key: &PodKey) -> bool {
    event.pod().is_some_and(|(subject, _)| subject == key)
}

/// A source as shown to users. A published pod that does not run because of another source counts as rejected too.
pub(super) fn source(view: &SourceView, desired: &DesiredPods) -> SourceDocument {
    let snapshot = &view.snapshot;
    let (health, detail) = match &snapshot.health {
        Health::Starting => ("starting", view.backend.to_string()),
        Health::Good => ("good", view.backend.to_string()),
        Health::Blind(why) => ("blind", why.to_string()),
        Health::Unavailable(why) => ("unavailable", why.to_string()),
    };
    let lost = desired.duplicates.iter().flat_map(|(key, duplicates)| {
        duplicates.iter().filter(move |duplicate| duplicate.loser.key == *key && loses(view.kind, duplicate))
    });
    let is_made = |key: &PodKey, pod: &PodRecord| pod.source == view.kind && !snapshot.pods.contains_key(key);
    SourceDocument {
        source: view.kind.to_string(),
        place: view.place.to_string(),
        health: health.to_owned(),
        detail,
        last_good: view.last_good.map(Time),
        next_retry: view.next_retry.map(Time),
        pods: snapshot.pods.len() + desired.pods.iter().filter(|(key, pod)| is_made(key, pod)).count(),
        objects: snapshot.objects.keys().filter(|key| key.kind.is_local()).count(),
        missing: desired.missing_objects(view.kind).map(missing_object).collect(),
        rejected: (snapshot.rejected.values().map(|refused| rejection(refused)).chain(lost.map(lost_claim)))
            .map(|rejected| RejectionDocument { accepted: accepted(view, desired, &rejected), ..rejected })
            .collect(),
        remark: None,
        held_updates: Vec::new(),
    }
}

fn missing_object((object, pods): (&ObjectKey, &imbl::OrdSet<PodKey>)) -> MissingObjectDocument {
    MissingObjectDocument { object: object.to_string(), pods: pods.iter().map(ToString::to_string).collect() }
}

/// Whether a pod of the source does not run. If two files claim one key, the source itself has already rejected one.
fn loses(source: SourceKind, Duplicate { winner, loser }: &Duplicate) -> bool {
    loser.source == source && (winner.source != source || winner.key != loser.key)
}

fn lost_claim(duplicate: &Duplicate) -> RejectionDocument {
    let Duplicate { winner, loser } = duplicate;
    let path = if winner.key == loser.key { "metadata.name" } else { "metadata.uid" };
    let mut fault = Fault::error(path, format!("pod {} {}", loser.key, duplicate.loser_message()));
    fault.origin = Arc::clone(&loser.origin);
    let fault = fault.with_remedy("change or remove one of them");
    rejection(&Rejection { origin: Arc::clone(&loser.origin), faults: vec![fault], kept: Vec::new() })
}

/// The running pods of a file or URL with rejections, without those at an older version.
fn accepted(view: &SourceView, desired: &DesiredPods, rejected: &RejectionDocument) -> Vec<String> {
    let runs = |key: &PodKey| desired.pods.get(key).is_some_and(|pod| pod.source == view.kind);
    let of_origin = view.snapshot.pods.values().filter(|pod| *pod.origin == *rejected.origin && runs(&pod.key));
    of_origin.map(|pod| pod.key.to_string()).filter(|key| !rejected.kept.contains(key)).collect()
}
