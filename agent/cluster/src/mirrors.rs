//! Keeps the mirror pods and their statuses up to date. [`mirror::step`] decides what is due for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::followed::Update;
use super::link::Link;
use super::reported_pod::{Comparison, DueStep, ReportedPods, delete, resource, send_status};
use super::seen_node::NodeFromApiserver;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_core::mirror::{self, Acknowledged, DesiredMirror, Mirror, Owner};
use limpet_core::reported_pod::{self, ReportStep};
use limpet_core::status::observed::{Changes, Observed, ObservedPod};
use limpet_core::stored_status::Reported;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};

/// What a step of a mirror acts on.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// The pod; `None` if it is gone and its mirror should go as well.
    wanted: Option<DesiredMirror>,
    node_name: Arc<str>,
    /// The UID of the Node object, which owns the mirror.
    node_uid: Arc<str>,
}

/// The result of a step.
pub(super) enum Outcome {
    /// This mirror exists now.
    Created(Mirror),
    /// The mirror with this UID is gone.
    Deleted(String),
    /// The apiserver has this status.
    Reported(Reported),
}

#[derive(Debug)]
pub(super) struct Mirrors {
    link: Link,
    node_name: Arc<str>,
    observed: Observed,
    desired: Desired,
    sources: Vec<SourceKind>,
    events: Events,
    node: watch::Receiver<NodeFromApiserver>,
    observed_changes: Changes,
    desired_changes: watch::Receiver<u64>,
    /// The mirrors that the apiserver has, once they have been listed.
    listed: Option<BTreeMap<PodKey, Mirror>>,
    known: BTreeMap<PodKey, Acknowledged>,
}

impl Mirrors {
    pub(super) fn new(
        link: Link,
        node_name: &str,
        (observed, desired, sources): (Observed, Desired, Vec<SourceKind>),
        events: Events,
        node: watch::Receiver<NodeFromApiserver>,
    ) -> Self {
        Self {
            link,
            node_name: Arc::from(node_name),
            observed_changes: observed.changes(),
            desired_changes: desired.changes(),
            observed,
            desired,
            sources,
            events,
            node,
            listed: None,
            known: BTreeMap::new(),
        }
    }

    fn stored(&mut self, pod: &Value) {
        let Some((key, mirror)) = Mirror::read(pod) else { return };
        let deleted = self.known.get(&key).and_then(|known| known.deleted.as_ref());
        // An update about a mirror that was deleted here is outdated.
        if deleted != Some(&mirror.uid) {
            self.observed.set_mirror(&key, Some(&mirror.uid));
            self.listed.get_or_insert_default().insert(key, mirror);
        }
    }

    fn gone(&mut self, key: &PodKey, uid: &str) {
        if let Some(listed) = &mut self.listed
            && listed.get(key).is_some_and(|mirror| mirror.uid == uid)
        {
            listed.remove(key);
            self.observed.set_mirror(key, None);
        }
    }

    fn owner(&mut self) -> Option<Owner> {
        self.node.borrow_and_update().node().map(|node| Owner { uid: node.uid.clone(), deleting: node.deleting })
    }

    /// The pods that need a mirror.
    fn wanted(&self) -> BTreeMap<PodKey, DesiredMirror> {
        let (observed, desired) = (self.observed.load(), self.desired.load());
        let mut wanted: BTreeMap<PodKey, DesiredMirror> = BTreeMap::new();
        wanted.extend(
            desired
                .pods
                .iter()
                .filter(|(_, record)| record.source.traits().is_mirrored)
                .map(|(key, record)| (key.clone(), DesiredMirror::desired(record))),
        );
        wanted.extend(
            observed
                .pods
                .iter()
                .filter(|(_, pod)| pod.record.source.traits().is_mirrored)
                .map(|(key, pod)| (key.clone(), DesiredMirror::observed(pod))),
        );
        wanted
    }

    fn due(&mut self, mut wanted: BTreeMap<PodKey, DesiredMirror>, owner: &Owner) -> Vec<DueStep<Subject>> {
        let Some(listed) = &self.listed else { return Vec::new() };
        let desired = self.desired.load();
        let all_sources_ready = self.sources.iter().all(|kind| desired.is_ready(*kind));
        let keys: BTreeSet<PodKey> = wanted.keys().chain(listed.keys()).cloned().collect();
        self.known.retain(|key, _| keys.contains(key));
        let (nothing, node_uid) = (Acknowledged::default(), Arc::<str>::from(owner.uid.as_str()));
        let mut due = Vec::new();
        for key in keys {
            let (wanted, mirror) = (wanted.remove(&key), listed.get(&key));
            let known = self.known.get(&key).unwrap_or(&nothing);
            if let Some(step) = mirror::step(wanted.as_ref(), mirror, known, owner, all_sources_ready) {
                due.push(DueStep {
                    key,
                    step,
                    generation: mirror.and_then(|mirror| mirror.generation),
                    version: wanted.as_ref().map(|wanted| wanted.record.fingerprint),
                    subject: Subject {
                        wanted,
                        node_name: Arc::clone(&self.node_name),
                        node_uid: Arc::clone(&node_uid),
                    },
                });
            }
        }
        due
    }
}

impl ReportedPods for Mirrors {
    type Subject = Subject;
    type Outcome = Outcome;

    fn apply_update(&mut self, update: Update) {
        match update {
            Update::Bookmark(_) => {}
            Update::Listed(pods, _) => {
                let before = self.listed.replace(BTreeMap::new()).unwrap_or_default();
                // A restored cluster may have deleted mirrors again, and older statuses.
                self.known.values_mut().for_each(|known| (known.deleted, known.status) = (None, None));
                pods.iter().for_each(|pod| self.stored(pod));
                let listed = self.listed.get_or_insert_default();
                let gone = before.keys().filter(|key| !listed.contains_key(key));
                gone.for_each(|key| self.observed.set_mirror(key, None));
            }
            Update::Stored(pod) => self.stored(&pod),
            Update::Deleted(pod) => {
                if let Some(key) = reported_pod::key_of(&pod) {
                    self.gone(&key, pod["metadata"]["uid"].as_str().unwrap_or_default());
                }
            }
        }
        let mirrors = self.listed.as_ref().map_or(0, BTreeMap::len);
        self.link.show(|view| view.mirrors = mirrors);
    }

    fn compare(&mut self) -> Comparison<Subject> {
        let (wanted, owner) = (self.wanted(), self.owner());
        match owner.filter(|_| self.listed.is_some()) {
            Some(owner) => Comparison::Due(self.due(wanted, &owner)),
            // Without a Node object no mirror can have an owner.
            None => Comparison::Unknown(wanted.len()),
        }
    }

    fn set_unsent(&self, count: usize) {
        self.link.outbox().set_mirrors(count);
    }

    fn perform<'a>(link: &'a Link, due: &'a DueStep<Subject>) -> BoxFuture<'a, Result<Outcome, RequestError>> {
        perform(link, due).boxed()
    }

    fn done(&mut self, DueStep { key, .. }: DueStep<Subject>, outcome: Outcome) {
        let known = self.known.entry(key.clone()).or_default();
        match outcome {
            Outcome::Created(mirror) => {
                known.admitted = Some(mirror.clone());
                self.observed.set_mirror(&key, Some(&mirror.uid));
                // A mirror that the watch has reported is newer.
                let listed = self.listed.get_or_insert_default();
                if listed.get(&key).is_none_or(|listed| listed.uid != mirror.uid) {
                    listed.insert(key.clone(), mirror);
                }
            }
            Outcome::Deleted(uid) => {
                known.deleted = Some(uid.clone());
                self.gone(&key, &uid);
                return;
            }
            Outcome::Reported(reported) => known.status = Some(reported),
        }
        if self.link.view().refused.contains_key(&key) {
            self.link.show(|view| drop(view.refused.remove(&key)));
            self.observed.touch();
        }
    }

    fn failed(&mut self, DueStep { key, step, subject, .. }: &DueStep<Subject>, _: u32, error: &RequestError) {
        tracing::debug!(pod = %key, ?step, %error, "request for the mirror pod failed");
        let makes_one = matches!(step, ReportStep::Create | ReportStep::Replace { .. });
        let Some(wanted) = subject.wanted.as_ref().filter(|_| makes_one) else { return };
        let message = format!("The apiserver does not show the pod, which runs all the same: {error}");
        if self.link.view().refused.get(key) == Some(&message) {
            return;
        }
        tracing::warn!(pod = %key, %error, "the apiserver does not have the mirror pod");
        let pod = Some((key.clone(), wanted.record.uid.clone()));
        self.events.emit(pod, None, EventType::Warning, "FailedMirrorPod", message.clone());
        self.link.show(|view| drop(view.refused.insert(key.clone(), message)));
        self.observed.touch();
    }

    async fn changed(&mut self) {
        tokio::select! {
            true = self.observed_changes.next() => {}
            Ok(()) = self.desired_changes.changed() => {}
            Ok(()) = self.node.changed() => {}
            else => std::future::pending().await,
        }
    }
}

/// Performs one step.
async fn perform(link: &Link, due: &DueStep<Subject>) -> Result<Outcome, RequestError> {
    let DueStep { key, step, generation, subject, .. } = due;
    let observed = subject.wanted.as_ref().and_then(|wanted| wanted.observed.as_ref());
    match (step, &subject.wanted, observed) {
        (ReportStep::Delete { uid }, ..) => delete_mirror(link, key, uid).await,
        // The next pass creates another mirror, unless the Node is being deleted.
        (ReportStep::Replace { uid, why }, ..) => {
            tracing::info!(pod = %key, why, "the mirror pod differs from its pod and is deleted");
            delete_mirror(link, key, uid).await
        }
        (ReportStep::Report { uid } | ReportStep::Correct { uid }, _, Some(observed)) => {
            report_status(link, key, uid, observed, *generation).await
        }
        (ReportStep::Create, Some(wanted), _) => create_mirror(link, key, wanted, subject).await,
        // These steps are planned only for an existing pod, so this arm is never reached.
        (ReportStep::Create | ReportStep::Report { .. } | ReportStep::Correct { .. }, ..) => {
            Err(RequestError::Unreadable("a step without a pod".to_owned()))
        }
    }
}

async fn delete_mirror(link: &Link, key: &PodKey, uid: &str) -> Result<Outcome, RequestError> {
    delete(link, key, uid).await?;
    Ok(Outcome::Deleted(uid.to_owned()))
}

async fn report_status(
    link: &Link,
    key: &PodKey,
    uid: &str,
    observed: &Arc<ObservedPod>,
    generation: Option<i64>,
) -> Result<Outcome, RequestError> {
    let patch = reported_pod::status_patch(observed, uid, generation);
    Ok(match send_status(link, key, patch).await? {
        Some(stored) => Outcome::Reported(Reported { uid: uid.to_owned(), pod: Arc::clone(observed), stored }),
        None => Outcome::Deleted(uid.to_owned()),
    })
}

async fn create_mirror(
    link: &Link,
    key: &PodKey,
    wanted: &DesiredMirror,
    subject: &Subject,
) -> Result<Outcome, RequestError> {
    let started = wanted.observed.as_ref().and_then(|pod| pod.status.start_time.as_ref()).map(|time| time.0);
    let seen = started.unwrap_or_else(Timestamp::now).to_string();
    let document = mirror::document(wanted, &subject.node_name, &subject.node_uid, &seen);
    let created = match link.send(Request::create(Resource::Pods(key.namespace().to_owned()), document)).await {
        // An earlier request whose answer was lost may have arrived.
        Err(error) if error.is_conflict() => {
            let stored = link.send(Request::get(resource(key))).await?;
            if Mirror::read(&stored).is_none() {
                return Err(error);
            }
            stored
        }
        created => created?,
    };
    let mirror = Mirror::read(&created).map(|(_, mirror)| mirror);
    mirror
        .map(Outcome::Created)
        .ok_or_else(|| RequestError::Unreadable("a mirror pod without its annotation".to_owned()))
}
