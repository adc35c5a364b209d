//! The loop that keeps the apiserver's view of pods equal to what runs.
//!
//! It is level-triggered: after each change it compares every pod and sends what is due, a few requests at a time. A
//! failed request is due again after a pause; no failure affects the pod itself. [`super::mirrors`] and
//! [`super::api_pods`] decide what is due for pods of the node's own sources and for the apiserver's.

mod corrections;
mod in_flight;
mod retries;

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::corrections::Corrections;
use self::in_flight::InFlight;
use self::retries::Retries;
use super::followed::Update;
use super::link::Link;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::reported_pod::ReportStep;
use limpet_core::stored_status::StoredStatus;
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::pod::{Fingerprint, PodKey};

/// A step that is due for one pod.
#[derive(Debug, Clone)]
pub(super) struct DueStep<S> {
    pub(super) key: PodKey,
    pub(super) step: ReportStep,
    /// The generation of the pod at the apiserver.
    pub(super) generation: Option<i64>,
    /// The version of the pod here: after a failure, another version is tried immediately.
    pub(super) version: Option<Fingerprint>,
    /// What the step acts on.
    pub(super) subject: S,
}

/// The result of comparing all pods.
#[derive(Debug)]
pub(super) enum Comparison<S> {
    /// The apiserver's state is not known yet, so this many pods cannot be reported.
    Unknown(usize),
    Due(Vec<DueStep<S>>),
}

/// Pods that are reported in the same way.
pub(super) trait ReportedPods: Send + 'static {
    /// What a step acts on.
    type Subject: Send + Sync + 'static;
    /// The result of a step.
    type Outcome: Send + 'static;

    /// Applies an update from the apiserver.
    fn apply_update(&mut self, update: Update);

    /// Compares the apiserver's state with what runs.
    fn compare(&mut self) -> Comparison<Self::Subject>;

    /// Records how many pods differ.
    fn set_unsent(&self, count: usize);

    fn perform<'a>(
        link: &'a Link,
        due: &'a DueStep<Self::Subject>,
    ) -> BoxFuture<'a, Result<Self::Outcome, RequestError>>;

    /// Applies the result of a step.
    fn done(&mut self, due: DueStep<Self::Subject>, outcome: Self::Outcome);

    /// Reports that a step has failed this often in a row, although there is a connection.
    fn failed(&mut self, due: &DueStep<Self::Subject>, failures: u32, error: &RequestError);

    /// Resolves when the node's side has changed. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// A step that has ended, with its result.
type Ended<P> = (DueStep<<P as ReportedPods>::Subject>, Result<<P as ReportedPods>::Outcome, RequestError>);

#[derive(Debug)]
struct Reporter<P> {
    pods: P,
    link: Link,
    retries: Retries,
    corrections: Corrections,
}

/// Reports the pods until the sender of updates is dropped.
pub(super) async fn report<P: ReportedPods>(pods: P, link: Link, mut updates: mpsc::Receiver<Update>) {
    let mut reporter = Reporter { pods, link, retries: Retries::default(), corrections: Corrections::default() };
    let mut requests = InFlight::new();
    loop {
        // The apiserver's updates are applied before the end of a pod is reported.
        while let Ok(update) = updates.try_recv() {
            reporter.pods.apply_update(update);
        }
        let due = reporter.compare();
        let online = reporter.link.is_online();
        let may_send = online && due.is_some();
        if let Some(due) = due.filter(|_| online) {
            reporter.begin(due, &mut requests);
        }
        let retry = reporter.next_retry(requests.pods()).filter(|_| may_send && requests.has_room());
        tokio::select! {
            biased;
            (_, ended) = requests.ended() => reporter.ended(ended),
            update = updates.recv() => match update {
                Some(update) => reporter.pods.apply_update(update),
                None => return,
            },
            () = reporter.pods.changed() => {}
            () = reporter.link.switched(online) => {}
            () = sleep_until_or_forever(retry) => {}
        }
    }
}

impl<P: ReportedPods> Reporter<P> {
    /// The due steps; records their number as unsent. `None` if the apiserver's state is not known yet.
    fn compare(&mut self) -> Option<Vec<DueStep<P::Subject>>> {
        self.corrections.begin(Instant::now());
        match self.pods.compare() {
            Comparison::Unknown(count) => {
                self.pods.set_unsent(count);
                None
            }
            Comparison::Due(mut due) => {
                due.retain(|due| !self.corrections.holds(&due.key, &due.step));
                self.retries.retain(&due);
                self.pods.set_unsent(due.len());
                Some(due)
            }
        }
    }

    /// Begins the steps that need not wait, as far as there is room.
    fn begin(&self, mut due: Vec<DueStep<P::Subject>>, requests: &mut InFlight<Ended<P>>) {
        self.retries.retain_due(&mut due, Instant::now());
        for due in due {
            if requests.pods().contains(&due.key) || !requests.has_room() {
                continue;
            }
            let link = self.link.clone();
            requests.begin(due.key.clone(), async move {
                let result = P::perform(&link, &due).await;
                (due, result)
            });
        }
    }

    /// When a failed or waiting step is due again, among pods without a request in flight.
    fn next_retry(&self, in_flight: &BTreeSet<PodKey>) -> Option<Instant> {
        self.retries.next(in_flight).into_iter().chain(self.corrections.next()).min()
    }

    fn ended(&mut self, (due, result): Ended<P>) {
        match result {
            Ok(outcome) => {
                self.retries.succeeded(&due.key);
                self.corrections.done(&due.key, &due.step, Instant::now());
                self.pods.done(due, outcome);
            }
            // Without a connection nothing is reported; the retry waits for the connection.
            Err(_) if !self.link.is_online() => {}
            Err(error) => {
                let failures = self.retries.failed(&due, &error, Instant::now(), fastrand::u64(..));
                self.pods.failed(&due, failures, &error);
            }
        }
    }
}

pub(super) fn resource(key: &PodKey) -> Resource {
    Resource::Pod(key.namespace().to_owned(), key.name().to_owned())
}

/// Sends a patch of a pod's status. Returns the stored status; `None` if the pod is gone.
pub(super) async fn send_status(link: &Link, key: &PodKey, patch: Value) -> Result<Option<StoredStatus>, RequestError> {
    match link.report_status(key.namespace().to_owned(), key.name().to_owned(), patch).await {
        Ok(stored) => Ok(Some(stored)),
        Err(error) if error.is_not_found() => Ok(None),
        // The same status would be refused again, but the next one may not be.
        Err(error) if matches!(error.code(), Some(400 | 422)) => {
            tracing::warn!(pod = %key, %error, "the apiserver rejected the pod status");
            Ok(Some(StoredStatus::default()))
        }
        Err(error) => Err(error),
    }
}

/// Deletes the Pod with this UID immediately. A missing pod counts as deleted.
pub(super) async fn delete(link: &Link, key: &PodKey, uid: &str) -> Result<(), RequestError> {
    match link.send(Request::delete_now(resource(key), uid)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
