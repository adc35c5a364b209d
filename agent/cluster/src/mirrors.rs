//! Keeps the mirror pods and their statuses: compares, and does what [`mirror::step`] says for each pod.
//!
//! After each change every pod is compared, and what is due is sent, a few requests at a time. What fails is due again
//! after a pause, and whatever fails, the pod itself is not touched.

mod retries;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::retries::Retries;
use super::corrections::Corrections;
use super::followed::Update;
use super::in_flight::InFlight;
use super::link::Link;
use super::seen_node::NodeFromApiserver;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_core::mirror::{self, Acknowledged, DesiredMirror, Mirror, Owner, Step};
use limpet_core::status::observed::{Observed, ObservedPod};
use limpet_core::stored_status::{Reported, StoredStatus};
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};

/// A step that is to be done: of which pod, what it is to be, and the generation of its mirror.
type Planned = (PodKey, Step, Option<DesiredMirror>, Option<i64>);

/// What a step has brought.
enum StepResult {
    /// There is this mirror now.
    Created(Mirror),
    /// The mirror of that UID is gone.
    Deleted(String),
    /// This status is acknowledged.
    Reported(Reported),
}

/// A step that has ended.
struct Ended {
    step: Step,
    wanted: Option<DesiredMirror>,
    result: Result<StepResult, RequestError>,
}

/// Keeps the mirror pods.
#[derive(Debug)]
pub(super) struct Mirrors {
    link: Link,
    node_name: String,
    observed: Observed,
    desired: Desired,
    sources: Vec<SourceKind>,
    events: Events,
    node: watch::Receiver<NodeFromApiserver>,
    /// What the apiserver has, once it has been listed.
    found: Option<BTreeMap<PodKey, Mirror>>,
    known: BTreeMap<PodKey, Acknowledged>,
    retries: Retries,
    corrections: Corrections,
}

impl Mirrors {
    pub(super) fn new(
        link: Link,
        node_name: String,
        (observed, desired, sources): (Observed, Desired, Vec<SourceKind>),
        events: Events,
        node: watch::Receiver<NodeFromApiserver>,
    ) -> Self {
        Self {
            link,
            node_name,
            observed,
            desired,
            sources,
            events,
            node,
            found: None,
            known: BTreeMap::new(),
            retries: Retries::default(),
            corrections: Corrections::default(),
        }
    }

    /// Keeps them until the sender of updates is dropped.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<Update>) {
        let (mut pods, mut desired) = (self.observed.changes(), self.desired.changes());
        let mut requests = InFlight::new();
        loop {
            while let Ok(update) = updates.try_recv() {
                self.apply_update(update);
            }
            let steps = self.compare();
            let online = self.link.is_online();
            if online {
                self.begin(steps, &mut requests);
            }
            let retry = self.next_retry(requests.pods()).filter(|_| online && requests.has_room());
            tokio::select! {
                biased;
                (key, ended) = requests.ended() => self.ended(&key, ended),
                update = updates.recv() => match update {
                    Some(update) => self.apply_update(update),
                    None => return,
                },
                true = pods.next() => {}
                Ok(()) = desired.changed() => {}
                Ok(()) = self.node.changed() => {}
                () = self.link.switched(online) => {}
                () = sleep_until_or_forever(retry) => {}
            }
        }
    }

    fn apply_update(&mut self, update: Update) {
        match update {
            Update::Bookmark(_) => {}
            Update::Listed(pods, _) => {
                let before = self.found.replace(BTreeMap::new()).unwrap_or_default();
                // A cluster that was restored has mirrors again that were deleted, and older statuses.
                self.known.values_mut().for_each(|known| (known.deleted, known.status) = (None, None));
                pods.iter().for_each(|pod| self.stored(pod));
                let found = self.found.get_or_insert_default();
                let gone = before.keys().filter(|key| !found.contains_key(key));
                gone.for_each(|key| self.observed.set_mirror(key, None));
            }
            Update::Stored(pod) => self.stored(&pod),
            Update::Deleted(pod) => {
                if let Some(key) = mirror::key_of(&pod) {
                    self.gone(&key, pod["metadata"]["uid"].as_str().unwrap_or_default());
                }
            }
        }
        let mirrors = self.found.as_ref().map_or(0, BTreeMap::len);
        self.link.show(|view| view.mirrors = mirrors);
    }

    fn stored(&mut self, pod: &Value) {
        let Some((key, mirror)) = Mirror::read(pod) else { return };
        let deleted = self.known.get(&key).and_then(|known| known.deleted.as_ref());
        // An update of one that was deleted here is from before.
        if deleted != Some(&mirror.uid) {
            self.observed.set_mirror(&key, Some(&mirror.uid));
            self.found.get_or_insert_default().insert(key, mirror);
        }
    }

    fn gone(&mut self, key: &PodKey, uid: &str) {
        if let Some(found) = &mut self.found
            && found.get(key).is_some_and(|mirror| mirror.uid == uid)
        {
            found.remove(key);
            self.observed.set_mirror(key, None);
        }
    }

    /// Begins the steps that are due, as far as there is room.
    fn begin(&mut self, mut steps: Vec<Planned>, requests: &mut InFlight<Ended>) {
        let Some(owner) = self.owner() else { return };
        self.retries.retain_due(&mut steps, Instant::now());
        for (key, step, wanted, generation) in steps {
            if requests.pods().contains(&key) || !requests.has_room() {
                continue;
            }
            let (link, name, uid) = (self.link.clone(), self.node_name.clone(), owner.uid.clone());
            requests.begin(key.clone(), async move {
                let result = perform(&link, &key, &step, wanted.as_ref(), generation, (&name, &uid)).await;
                Ended { step, wanted, result }
            });
        }
    }

    fn ended(&mut self, key: &PodKey, Ended { step, wanted, result }: Ended) {
        match result {
            Ok(done) => {
                self.corrections.done(key, &step, Instant::now());
                self.done(key, done);
            }
            Err(error) => self.failed(key, &step, wanted.as_ref(), &error),
        }
    }

    /// When a step that failed or waits is due again, of a pod that is not in flight; `None` while there is nothing to
    /// compare, or no Node object to own a mirror.
    fn next_retry(&mut self, in_flight: &BTreeSet<PodKey>) -> Option<Instant> {
        self.found.as_ref()?;
        self.owner()?;
        self.retries.next(in_flight).into_iter().chain(self.corrections.next()).min()
    }

    fn owner(&mut self) -> Option<Owner> {
        self.node.borrow_and_update().node().map(|node| Owner { uid: node.uid.clone(), deleting: node.deleting })
    }

    /// The steps that are to be done; their number is what is unsent.
    fn compare(&mut self) -> Vec<Planned> {
        let (wanted, owner) = (self.wanted(), self.owner());
        let (steps, count) = match (&self.found, owner) {
            (Some(_), Some(owner)) => {
                let steps = self.steps(wanted, &owner);
                let count = steps.len();
                (steps, count)
            }
            // What the apiserver has has not been seen yet.
            _ => (Vec::new(), wanted.len()),
        };
        self.link.outbox().set_mirrors(count);
        steps
    }

    /// The pods that are to have a mirror.
    fn wanted(&self) -> BTreeMap<PodKey, DesiredMirror> {
        let (observed, desired) = (self.observed.load(), self.desired.load());
        let mut wanted: BTreeMap<PodKey, DesiredMirror> = BTreeMap::new();
        wanted.extend(
            desired
                .pods
                .iter()
                .filter(|(_, record)| record.source.traits().is_mirrored)
                .map(|(k, r)| (k.clone(), DesiredMirror::desired(r))),
        );
        wanted.extend(
            observed
                .pods
                .iter()
                .filter(|(_, pod)| pod.record.source.traits().is_mirrored)
                .map(|(k, p)| (k.clone(), DesiredMirror::observed(p))),
        );
        wanted
    }

    fn steps(&mut self, mut wanted: BTreeMap<PodKey, DesiredMirror>, owner: &Owner) -> Vec<Planned> {
        self.corrections.begin(Instant::now());
        let Some(found) = &self.found else { return Vec::new() };
        let desired = self.desired.load();
        let all_sources_ready = self.sources.iter().all(|kind| desired.is_ready(*kind));
        let keys: BTreeSet<PodKey> = wanted.keys().chain(found.keys()).cloned().collect();
        self.known.retain(|key, _| keys.contains(key));
        let nothing = Acknowledged::default();
        let mut steps = Vec::new();
        for key in keys {
            let pod = wanted.remove(&key);
            let mirror = found.get(&key);
            let known = self.known.get(&key).unwrap_or(&nothing);
            if let Some(step) = mirror::step(pod.as_ref(), mirror, known, owner, all_sources_ready)
                && !self.corrections.holds(&key, &step)
            {
                let generation = mirror.and_then(|mirror| mirror.generation);
                steps.push((key, step, pod, generation));
            }
        }
        self.retries.retain(&steps);
        steps
    }

    fn done(&mut self, key: &PodKey, done: StepResult) {
        self.retries.succeeded(key);
        let known = self.known.entry(key.clone()).or_default();
        match done {
            StepResult::Created(mirror) => {
                known.admitted = Some(mirror.clone());
                self.observed.set_mirror(key, Some(&mirror.uid));
                // What the watch has brought of it is newer.
                let found = self.found.get_or_insert_default();
                if found.get(key).is_none_or(|found| found.uid != mirror.uid) {
                    found.insert(key.clone(), mirror);
                }
            }
            StepResult::Deleted(uid) => {
                known.deleted = Some(uid.clone());
                self.gone(key, &uid);
                return;
            }
            StepResult::Reported(reported) => known.status = Some(reported),
        }
        if self.link.view().refused.contains_key(key) {
            self.link.show(|view| drop(view.refused.remove(key)));
            self.observed.touch();
        }
    }

    /// Without a connection there is nothing to say, and nothing to wait for but the connection.
    fn failed(&mut self, key: &PodKey, step: &Step, wanted: Option<&DesiredMirror>, error: &RequestError) {
        if !self.link.is_online() {
            return;
        }
        let of = wanted.map(|wanted| wanted.record.fingerprint);
        self.retries.failed((key, step), of, error, Instant::now(), fastrand::u64(..));
        tracing::debug!(pod = %key, ?step, %error, "request for the mirror pod failed");
        let Some(wanted) = wanted.filter(|_| matches!(step, Step::Create | Step::Replace { .. })) else { return };
        let message = format!("The apiserver does not show the pod, which runs all the same: {error}");
        if self.link.view().refused.get(key) == Some(&message) {
            return;
        }
        tracing::warn!(pod = %key, %error, "the apiserver does not have the mirror pod");
        let record = &wanted.record;
        let pod = Some((key.clone(), record.uid.clone()));
        self.events.emit(pod, None, EventType::Warning, "FailedMirrorPod", message.clone());
        self.link.show(|view| drop(view.refused.insert(key.clone(), message)));
        self.observed.touch();
    }
}

/// Does one step.
async fn perform(
    link: &Link,
    key: &PodKey,
    step: &Step,
    wanted: Option<&DesiredMirror>,
    generation: Option<i64>,
    node: (&str, &str),
) -> Result<StepResult, RequestError> {
    let observed = wanted.and_then(|wanted| wanted.observed.as_ref());
    match (step, wanted, observed) {
        (Step::Delete { uid }, ..) => delete_mirror(link, key, uid).await,
        // The next pass makes another one, unless the Node is being deleted.
        (Step::Replace { uid, why }, ..) => {
            tracing::info!(pod = %key, why, "the mirror pod differs from its pod and is deleted");
            delete_mirror(link, key, uid).await
        }
        (Step::Report { uid } | Step::Correct { uid }, _, Some(observed)) => {
            report_status(link, key, uid, observed, generation).await
        }
        (Step::Create, Some(wanted), _) => create_mirror(link, key, wanted, node).await,
        // A step is of a pod that is there: nothing comes here.
        (Step::Create | Step::Report { .. } | Step::Correct { .. }, ..) => {
            Err(RequestError::Unreadable("a step without a pod".to_owned()))
        }
    }
}

fn resource(key: &PodKey) -> Resource {
    Resource::Pod(key.namespace().to_owned(), key.name().to_owned())
}

async fn delete_mirror(link: &Link, key: &PodKey, uid: &str) -> Result<StepResult, RequestError> {
    match link.send(Request::delete_now(resource(key), uid)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(StepResult::Deleted(uid.to_owned())),
    }
}

async fn report_status(
    link: &Link,
    key: &PodKey,
    uid: &str,
    observed: &Arc<ObservedPod>,
    generation: Option<i64>,
) -> Result<StepResult, RequestError> {
    let patch = mirror::status_patch(observed, uid, generation);
    let reported = |stored| StepResult::Reported(Reported { uid: uid.to_owned(), pod: Arc::clone(observed), stored });
    match link.report_status(key.namespace().to_owned(), key.name().to_owned(), patch).await {
        Ok(stored) => Ok(reported(stored)),
        Err(error) if error.is_not_found() => Ok(StepResult::Deleted(uid.to_owned())),
        // The same status would be refused again; the next one may not be.
        Err(error) if matches!(error.code(), Some(400 | 422)) => {
            tracing::warn!(pod = %key, %error, "the apiserver rejected the pod status");
            Ok(reported(StoredStatus::default()))
        }
        Err(error) => Err(error),
    }
}

async fn create_mirror(
    link: &Link,
    key: &PodKey,
    wanted: &DesiredMirror,
    (node_name, node_uid): (&str, &str),
) -> Result<StepResult, RequestError> {
    let started = wanted.observed.as_ref().and_then(|pod| pod.status.start_time.as_ref()).map(|time| time.0);
    let seen = started.unwrap_or_else(Timestamp::now).to_string();
    let document = mirror::document(wanted, node_name, node_uid, &seen);
    let created = match link.send(Request::create(Resource::Pods(key.namespace().to_owned()), document)).await {
        // An earlier request may have come through whose answer was lost.
        Err(error) if error.is_conflict() => {
            let found = link.send(Request::get(resource(key))).await?;
            if Mirror::read(&found).is_none() {
                return Err(error);
            }
            found
        }
        created => created?,
    };
    let mirror = Mirror::read(&created).map(|(_, mirror)| mirror);
    mirror
        .map(StepResult::Created)
        .ok_or_else(|| RequestError::Unreadable("a mirror pod without its annotation".to_owned()))
}
