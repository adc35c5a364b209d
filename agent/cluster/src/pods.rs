//! Reports on the pods that the apiserver has for this node, and deletes there what has ended here.
//!
//! Like the mirrors, level triggered: after each change what the apiserver has is compared with what runs, by
//! [`api_pod::step`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::corrections::Corrections;
use super::followed::Update;
use super::in_flight::InFlight;
use super::link::Link;
use crate::SOURCE;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::api_pod::{self, ApiPod, Ended, LocalPod};
use limpet_core::connectivity;
use limpet_core::merge::slot::Slots;
use limpet_core::mirror::{self, Acknowledged, Step};
use limpet_core::source::Rejection;
use limpet_core::status::observed::{Consumer, Observed, ObservedPod};
use limpet_core::stored_status::{Reported, StoredStatus};
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::pod::PodKey;

/// What a status is made of.
#[derive(Debug, Clone)]
enum Report {
    Observed(Arc<ObservedPod>),
    Refused(Arc<Rejection>),
    Nothing,
}

/// One step that is due.
struct Due {
    key: PodKey,
    step: Step,
    generation: Option<i64>,
    /// The pod has ended for good at the apiserver.
    over: bool,
    report: Report,
}

/// Reports on the apiserver's own pods.
#[derive(Debug)]
pub(super) struct Pods {
    link: Link,
    observed: Observed,
    slots: Arc<Slots>,
    /// Keeps the last status of a pod until it is reported.
    last_statuses: Consumer,
    /// What the apiserver has, once it has been listed.
    found: Option<BTreeMap<PodKey, ApiPod>>,
    known: BTreeMap<PodKey, Acknowledged>,
    /// The last statuses of pods that were deleted at the apiserver, until it says that they are gone: one that is
    /// restored may have them again.
    deleted: BTreeMap<PodKey, Arc<ObservedPod>>,
    /// How often the step of a pod has failed in a row, and when it is tried again.
    retries: BTreeMap<PodKey, (u32, Instant)>,
    corrections: Corrections,
}

impl Pods {
    pub(super) fn new(link: Link, observed: Observed, slots: Arc<Slots>) -> Self {
        let last_statuses = observed.register("apiserver");
        let (known, deleted, retries) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let corrections = Corrections::default();
        Self { link, observed, slots, last_statuses, found: None, known, deleted, retries, corrections }
    }

    /// Reports until the sender of updates is dropped.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<Update>) {
        let mut changes = self.observed.changes();
        let mut requests = InFlight::new();
        loop {
            // What the apiserver has is known before the end of a pod that it has.
            while let Ok(update) = updates.try_recv() {
                self.apply_update(update);
            }
            let due = self.compare();
            let online = self.link.is_online();
            if online {
                self.begin(due, &mut requests);
            }
            let retry = self.next_retry(requests.pods()).filter(|_| online && requests.has_room());
            tokio::select! {
                biased;
                (_, (due, result)) = requests.ended() => self.done(due, result),
                update = updates.recv() => match update {
                    Some(update) => self.apply_update(update),
                    None => return,
                },
                true = changes.next() => {}
                () = self.link.switched(online) => {}
                () = sleep_until_or_forever(retry) => {}
            }
        }
    }

    /// Begins the steps that are due, as far as there is room.
    fn begin(&self, due: Vec<Due>, requests: &mut InFlight<(Due, Result<StoredStatus, RequestError>)>) {
        let now = Instant::now();
        for due in due {
            let waits = self.retries.get(&due.key).is_some_and(|(_, at)| *at > now);
            if waits || requests.pods().contains(&due.key) || !requests.has_room() {
                continue;
            }
            let link = self.link.clone();
            requests.begin(due.key.clone(), async move {
                let result = perform(&link, &due).await;
                (due, result)
            });
        }
    }

    /// When a step that failed or waits is due again, of a pod that is not in flight.
    fn next_retry(&self, in_flight: &BTreeSet<PodKey>) -> Option<Instant> {
        let retries = self.retries.iter().filter(|(key, _)| !in_flight.contains(key));
        retries.map(|(_, (_, at))| *at).chain(self.corrections.next()).min()
    }

    fn apply_update(&mut self, update: Update) {
        match update {
            Update::Bookmark(_) => {}
            Update::Listed(pods, _) => {
                let found: BTreeMap<PodKey, ApiPod> = pods.iter().filter_map(ApiPod::read).collect();
                // One that is not being deleted any more keeps running.
                self.deleted.retain(|key, pod| found.get(key).is_some_and(|found| found.deleting && is_it(found, pod)));
                self.found = Some(found);
                // A list comes after a long time, or from a cluster that was restored and may have older statuses.
                self.known.clear();
            }
            Update::Stored(pod) => {
                if let Some((key, pod)) = ApiPod::read(&pod)
                    // What is left of a deleted one is from before, or waits for a finalizer.
                    && !self.deleted.get(&key).is_some_and(|deleted| is_it(&pod, deleted))
                {
                    self.found.get_or_insert_default().insert(key, pod);
                }
            }
            Update::Deleted(pod) => {
                let Some((key, pod)) = ApiPod::read(&pod) else { return };
                if self.deleted.get(&key).is_some_and(|deleted| is_it(&pod, deleted)) {
                    self.deleted.remove(&key);
                }
                if let Some(found) = &mut self.found
                    && found.get(&key).is_some_and(|known| known.uid == pod.uid)
                {
                    found.remove(&key);
                }
            }
        }
    }

    /// Drops the last statuses that are not needed: of other sources, and of pods that the apiserver does not have. One
    /// that its source holds although another cluster's list lacks it may be requested once the earlier cluster is
    /// back.
    fn release(&self) {
        let source = Arc::clone(&self.slots.load()[SOURCE.index()]);
        for (version, pod) in self.last_statuses.awaited(&self.observed.load()) {
            let found = self.found.as_ref();
            let there = found.is_none_or(|found| found.get(&pod.record.key).is_some_and(|found| is_it(found, pod)));
            let is_held = source.pods.get(&pod.record.key).is_some_and(|held| held.uid == pod.record.uid);
            if pod.record.source != SOURCE || !(there || is_held) {
                self.last_statuses.acknowledge(version);
            }
        }
    }

    /// The steps that are to be done; their number is what is unsent.
    fn compare(&mut self) -> Vec<Due> {
        self.release();
        let due = self.due();
        let count = match &self.found {
            Some(_) => due.len(),
            // What the apiserver knows of them has not been seen yet.
            None => self.observed.load().pods.values().filter(|pod| pod.record.source == SOURCE).count(),
        };
        self.link.outbox().set_statuses(count);
        due
    }

    fn due(&mut self) -> Vec<Due> {
        self.corrections.begin(Instant::now());
        let Some(found) = &self.found else { return Vec::new() };
        let observed = self.observed.load();
        let mut last: BTreeMap<&PodKey, &Arc<ObservedPod>> = BTreeMap::new();
        for (_, pod) in self.last_statuses.awaited(&observed) {
            last.insert(&pod.record.key, pod);
        }
        self.known.retain(|key, _| found.contains_key(key));
        let source = Arc::clone(&self.slots.load()[SOURCE.index()]);
        let nothing = Acknowledged::default();
        let mut due = Vec::new();
        for (key, pod) in found {
            let of_pod = |observed: &&Arc<ObservedPod>| is_it(pod, observed);
            let rejection = source.rejected.get(&*key.to_string()).filter(|rejection| rejection.kept.is_empty());
            let running = observed.pods.get(key);
            // A pod of another source that has its place runs only once nothing of this one does.
            let displaced = running.is_some_and(|running| running.record.source != SOURCE);
            let last = last.get(key).copied().or_else(|| self.deleted.get(key)).filter(of_pod);
            let (known, report) = match (running.filter(of_pod), last, rejection) {
                (Some(running), ..) => (LocalPod::Observed(running, Ended::No), Report::Observed(Arc::clone(running))),
                (None, Some(gone), _) => (LocalPod::Observed(gone, Ended::Yes), Report::Observed(Arc::clone(gone))),
                (None, None, Some(why)) => (LocalPod::Refused(&why.faults), Report::Refused(Arc::clone(why))),
                (None, None, None) if displaced => (LocalPod::Gone, Report::Nothing),
                // It ended before the node's disk or the cluster's was replaced: no worker takes it up.
                (None, None, None)
                    if pod.over && source.pods.get(key).is_none_or(|held| *held.uid.to_string() != *pod.uid) =>
                {
                    (LocalPod::Gone, Report::Nothing)
                }
                (None, None, None) => continue,
            };
            let acknowledged = self.known.get(key).unwrap_or(&nothing);
            if let Some(step) = api_pod::step(pod, known, acknowledged)
                && !self.corrections.holds(key, &step)
            {
                due.push(Due { key: key.clone(), step, generation: pod.generation, over: pod.over, report });
            }
        }
        // A pod that needs no step any more is not waited for.
        self.retries.retain(|key, _| due.iter().any(|due| due.key == *key));
        due
    }

    /// The step need not be done again.
    fn settled(&mut self, key: PodKey, step: Step, report: Report, stored: StoredStatus) {
        self.retries.remove(&key);
        self.corrections.done(&key, &step, Instant::now());
        match (step, report) {
            (Step::Report { uid } | Step::Correct { uid }, Report::Observed(pod)) => {
                self.known.entry(key).or_default().status = Some(Reported { uid, pod, stored });
            }
            (Step::Report { uid }, Report::Refused(why)) => {
                let pod = self.found.as_mut().and_then(|found| found.get_mut(&key));
                // Meanwhile another pod may have that name.
                if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
                    pod.refusal_reported(&why.faults);
                }
            }
            (step, report) => {
                tracing::info!(pod = %key, "deleted at the apiserver");
                // The watch may have brought the deletion already, and another pod of that name.
                let of_step = |found: &ApiPod| matches!(&step, Step::Delete { uid } if found.uid == *uid);
                let found = self.found.as_mut().filter(|found| found.get(&key).is_some_and(of_step));
                if found.and_then(|found| found.remove(&key)).is_some()
                    && let (Step::Delete { uid }, Report::Observed(pod)) = (step, report)
                    && *pod.record.uid.to_string() == *uid
                {
                    self.deleted.insert(key, pod);
                }
            }
        }
    }

    fn done(&mut self, due: Due, result: Result<StoredStatus, RequestError>) {
        let Due { key, step, report, .. } = due;
        match result {
            Ok(stored) => self.settled(key, step, report, stored),
            Err(_) if !self.link.is_online() => {}
            // The same status would be refused again; the next one may not be.
            Err(error) if matches!(error.code(), Some(400 | 422)) && !matches!(step, Step::Delete { .. }) => {
                tracing::warn!(pod = %key, %error, "the apiserver rejected the pod status");
                self.settled(key, step, report, StoredStatus::default());
            }
            Err(error) => {
                let failures = self.retries.get(&key).map_or(1, |(failures, _)| failures.saturating_add(1));
                if failures == 1 {
                    tracing::warn!(pod = %key, %error, "the apiserver rejected a report about the pod");
                }
                let pause = match error.code() {
                    Some(400 | 403 | 413 | 422) => mirror::refusal_pause(failures, fastrand::u64(..)),
                    _ => connectivity::pause(
                        failures,
                        error.retry_after(),
                        connectivity::MAX_RECONNECT_DELAY,
                        fastrand::u64(..),
                    ),
                };
                self.retries.insert(key, (failures, Instant::now() + pause));
            }
        }
    }
}

/// Whether that is what the apiserver has.
fn is_it(found: &ApiPod, observed: &ObservedPod) -> bool {
    *found.uid == *observed.record.uid.to_string()
}

/// Does one step, and returns the status that is stored then. A pod that is not there any more needs none.
async fn perform(link: &Link, due: &Due) -> Result<StoredStatus, RequestError> {
    let (namespace, name) = (due.key.namespace().to_owned(), due.key.name().to_owned());
    let sent = match (&due.step, &due.report) {
        (Step::Report { uid } | Step::Correct { uid }, Report::Observed(pod)) => {
            let patch = api_pod::status_patch(pod, uid, due.generation, due.over);
            link.report_status(namespace, name, patch).await
        }
        (Step::Report { uid }, Report::Refused(why)) => {
            let patch = api_pod::refusal_patch(&why.faults, uid, due.generation);
            link.report_status(namespace, name, patch).await
        }
        (Step::Delete { uid } | Step::Replace { uid, .. }, _) => {
            let deletion = Request::delete_now(Resource::Pod(namespace, name), uid);
            link.send(deletion).await.map(|_| StoredStatus::default())
        }
        (Step::Create | Step::Report { .. } | Step::Correct { .. }, _) => Ok(StoredStatus::default()),
    };
    match sent {
        Err(error) if error.is_not_found() => Ok(StoredStatus::default()),
        sent => sent,
    }
}
