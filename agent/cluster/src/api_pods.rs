//! Reports the status of the apiserver's pods on this node, and deletes there those that have ended here.
//!
//! [`api_pod::step`] decides what is due for each pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};

use super::followed::Update;
use super::link::Link;
use super::reported_pod::{Comparison, DueStep, ReportedPods, delete, send_status};
use crate::SOURCE;
use limpet_apiserver_client::RequestError;
use limpet_core::api_pod::{self, ApiPod, Ended, LocalPod};
use limpet_core::merge::slot::Slots;
use limpet_core::reported_pod::ReportStep;
use limpet_core::source::Rejection;
use limpet_core::status::observed::{Changes, Consumer, Observed, ObservedPod};
use limpet_core::stored_status::{Reported, StoredStatus};
use limpet_model::pod::PodKey;

/// Where a reported status comes from.
#[derive(Debug, Clone)]
enum Report {
    Observed(Arc<ObservedPod>),
    Refused(Arc<Rejection>),
    Nothing,
}

/// What a step acts on.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    report: Report,
    /// Whether the pod's status is final at the apiserver.
    over: bool,
}

/// The apiserver's own pods.
#[derive(Debug)]
pub(super) struct ApiPods {
    link: Link,
    observed: Observed,
    changes: Changes,
    slots: Arc<Slots>,
    /// Keeps a pod's last status until it is reported.
    last_statuses: Consumer,
    /// The pods that the apiserver has, once they have been listed.
    listed: Option<BTreeMap<PodKey, ApiPod>>,
    /// The statuses that the apiserver has acknowledged.
    known: BTreeMap<PodKey, Reported>,
    /// The last statuses of pods that were deleted at the apiserver, until it confirms that they are gone: a restored
    /// apiserver may have the pods again.
    deleted: BTreeMap<PodKey, Arc<ObservedPod>>,
}

impl ApiPods {
    pub(super) fn new(link: Link, observed: Observed, slots: Arc<Slots>) -> Self {
        let (changes, last_statuses) = (observed.changes(), observed.register("apiserver"));
        let (known, deleted) = (BTreeMap::new(), BTreeMap::new());
        Self { link, observed, changes, slots, last_statuses, listed: None, known, deleted }
    }

    /// Releases last statuses that are not needed: those of other sources' pods, and of pods that the apiserver does
    /// not have. A pod that its source keeps although another cluster's list lacks it still needs its status once the
    /// earlier cluster is back.
    fn release(&self) {
        let source = Arc::clone(&self.slots.load()[SOURCE.index()]);
        for (version, pod) in self.last_statuses.awaited(&self.observed.load()) {
            let listed = self.listed.as_ref();
            let there =
                listed.is_none_or(|listed| listed.get(&pod.record.key).is_some_and(|listed| is_it(listed, pod)));
            let is_held = source.pods.get(&pod.record.key).is_some_and(|held| held.uid == pod.record.uid);
            if pod.record.source != SOURCE || !(there || is_held) {
                self.last_statuses.acknowledge(version);
            }
        }
    }

    fn due(&mut self, listed: &BTreeMap<PodKey, ApiPod>) -> Vec<DueStep<Subject>> {
        let observed = self.observed.load();
        let mut last: BTreeMap<&PodKey, &Arc<ObservedPod>> = BTreeMap::new();
        for (_, pod) in self.last_statuses.awaited(&observed) {
            last.insert(&pod.record.key, pod);
        }
        self.known.retain(|key, _| listed.contains_key(key));
        let source = Arc::clone(&self.slots.load()[SOURCE.index()]);
        let mut due = Vec::new();
        for (key, pod) in listed {
            let shows = |observed: &&Arc<ObservedPod>| is_it(pod, observed);
            let rejection = source.rejected.get(&*key.to_string()).filter(|rejection| rejection.kept.is_empty());
            let running = observed.pods.get(key);
            // A pod of another source that takes this pod's name starts only after this pod has ended.
            let displaced = running.is_some_and(|running| running.record.source != SOURCE);
            let last = last.get(key).copied().or_else(|| self.deleted.get(key)).filter(shows);
            let (known, report) = match (running.filter(shows), last, rejection) {
                (Some(running), ..) => (LocalPod::Observed(running, Ended::No), Report::Observed(Arc::clone(running))),
                (None, Some(gone), _) => (LocalPod::Observed(gone, Ended::Yes), Report::Observed(Arc::clone(gone))),
                (None, None, Some(why)) => (LocalPod::Refused(&why.faults), Report::Refused(Arc::clone(why))),
                (None, None, None) if displaced => (LocalPod::Gone, Report::Nothing),
                // The pod ended before the node's disk or the cluster was replaced, so no worker adopts it.
                (None, None, None)
                    if pod.over && source.pods.get(key).is_none_or(|held| *held.uid.to_string() != *pod.uid) =>
                {
                    (LocalPod::Gone, Report::Nothing)
                }
                (None, None, None) => continue,
            };
            if let Some(step) = api_pod::step(pod, known, self.known.get(key)) {
                let subject = Subject { report, over: pod.over };
                due.push(DueStep { key: key.clone(), step, generation: pod.generation, version: None, subject });
            }
        }
        due
    }
}

impl ReportedPods for ApiPods {
    type Subject = Subject;
    type Outcome = StoredStatus;

    fn apply_update(&mut self, update: Update) {
        match update {
            Update::Bookmark(_) => {}
            Update::Listed(pods, _) => {
                let listed: BTreeMap<PodKey, ApiPod> = pods.iter().filter_map(ApiPod::read).collect();
                // A pod that is no longer being deleted keeps running.
                self.deleted
                    .retain(|key, pod| listed.get(key).is_some_and(|listed| listed.deleting && is_it(listed, pod)));
                self.listed = Some(listed);
                // A list comes after a long break, or from a restored cluster with older statuses.
                self.known.clear();
            }
            Update::Stored(pod) => {
                if let Some((key, pod)) = ApiPod::read(&pod)
                    // An update about a deleted pod is outdated, or the pod waits for a finalizer.
                    && !self.deleted.get(&key).is_some_and(|deleted| is_it(&pod, deleted))
                {
                    self.listed.get_or_insert_default().insert(key, pod);
                }
            }
            Update::Deleted(pod) => {
                let Some((key, pod)) = ApiPod::read(&pod) else { return };
                if self.deleted.get(&key).is_some_and(|deleted| is_it(&pod, deleted)) {
                    self.deleted.remove(&key);
                }
                if let Some(listed) = &mut self.listed
                    && listed.get(&key).is_some_and(|known| known.uid == pod.uid)
                {
                    listed.remove(&key);
                }
            }
        }
    }

    fn compare(&mut self) -> Comparison<Subject> {
        self.release();
        let Some(listed) = self.listed.take() else {
            // The apiserver's record of these pods has not arrived yet.
            let observed = self.observed.load();
            return Comparison::Unknown(observed.pods.values().filter(|pod| pod.record.source == SOURCE).count());
        };
        let due = self.due(&listed);
        self.listed = Some(listed);
        Comparison::Due(due)
    }

    fn set_unsent(&self, count: usize) {
        self.link.outbox().set_statuses(count);
    }

    fn perform<'a>(link: &'a Link, due: &'a DueStep<Subject>) -> BoxFuture<'a, Result<StoredStatus, RequestError>> {
        perform(link, due).boxed()
    }

    fn done(&mut self, due: DueStep<Subject>, stored: StoredStatus) {
        let DueStep { key, step, subject: Subject { report, .. }, .. } = due;
        match (step, report) {
            (ReportStep::Report { uid } | ReportStep::Correct { uid }, Report::Observed(pod)) => {
                self.known.insert(key, Reported { uid, pod, stored });
            }
            (ReportStep::Report { uid }, Report::Refused(why)) => {
                let pod = self.listed.as_mut().and_then(|listed| listed.get_mut(&key));
                // Another pod may have this name by now.
                if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
                    pod.refusal_reported(&why.faults);
                }
            }
            (step, report) => {
                tracing::info!(pod = %key, "deleted at the apiserver");
                // The watch may already have reported the deletion, and another pod of this name.
                let is_deleted = |pod: &ApiPod| matches!(&step, ReportStep::Delete { uid } if pod.uid == *uid);
                let listed = self.listed.as_mut().filter(|listed| listed.get(&key).is_some_and(is_deleted));
                if listed.and_then(|listed| listed.remove(&key)).is_some()
                    && let (ReportStep::Delete { uid }, Report::Observed(pod)) = (step, report)
                    && *pod.record.uid.to_string() == *uid
                {
                    self.deleted.insert(key, pod);
                }
            }
        }
    }

    fn failed(&mut self, due: &DueStep<Subject>, failures: u32, error: &RequestError) {
        if failures == 1 {
            tracing::warn!(pod = %due.key, %error, "the apiserver rejected a report about the pod");
        }
    }

    async fn changed(&mut self) {
        if !self.changes.next().await {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether the apiserver's pod and the observed pod are the same.
fn is_it(pod: &ApiPod, observed: &ObservedPod) -> bool {
    *pod.uid == *observed.record.uid.to_string()
}

/// Performs one step. Returns the status that is then stored; `None` if the pod is gone.
async fn perform(link: &Link, due: &DueStep<Subject>) -> Result<StoredStatus, RequestError> {
    let DueStep { key, step, generation, subject, .. } = due;
    let patch = match (step, &subject.report) {
        (ReportStep::Report { uid } | ReportStep::Correct { uid }, Report::Observed(pod)) => {
            api_pod::status_patch(pod, uid, *generation, subject.over)
        }
        (ReportStep::Report { uid }, Report::Refused(why)) => api_pod::refusal_patch(&why.faults, uid, *generation),
        (ReportStep::Delete { uid } | ReportStep::Replace { uid, .. }, _) => {
            delete(link, key, uid).await?;
            return Ok(StoredStatus::default());
        }
        (ReportStep::Create | ReportStep::Report { .. } | ReportStep::Correct { .. }, _) => {
            return Ok(StoredStatus::default());
        }
    };
    Ok(send_status(link, key, patch).await?.unwrap_or_default())
}
