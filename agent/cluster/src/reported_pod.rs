//! The loop that keeps what the apiserver shows of pods equal to what runs.
//!
//! Level triggered: after each change every pod is compared, and what is due is sent, a few requests at a time. What fails
//! is due again after a pause; whatever fails, the pod itself is not touched. [`super::mirrors`] and [`super::api_pods`]
//! say what is due for the pods of the node's own sources and for the apiserver's.

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
use limpet_core::reported_pod::Step;
use limpet_core::stored_status::StoredStatus;
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::pod::{Fingerprint, PodKey};

/// A step that is due for one pod.
#[derive(Debug, Clone)]
pub(super) struct DueStep<S> {
    pub(super) key: PodKey,
    pub(super) step: Step,
    /// The generation of the pod at the apiserver.
    pub(super) generation: Option<i64>,
    /// The version of the pod here: after a failure another one is tried at once.
    pub(super) version: Option<Fingerprint>,
    /// What the step is done with.
    pub(super) subject: S,
}

/// What a comparison of all pods has found.
#[derive(Debug)]
pub(super) enum Comparison<S> {
    /// What the apiserver has is not known yet, so nothing can be sent of so many pods.
    Unknown(usize),
    Due(Vec<DueStep<S>>),
}

/// The pods of one kind.
pub(super) trait ReportedPods: Send + 'static {
    /// What a step is done with.
    type Subject: Send + Sync + 'static;
    /// What a step has brought.
    type Outcome: Send + 'static;

    /// Takes in what the apiserver has.
    fn apply_update(&mut self, update: Update);

    /// Compares what the apiserver has with what runs.
    fn compare(&mut self) -> Comparison<Self::Subject>;

    /// Shows how many pods differ.
    fn set_unsent(&self, count: usize);

    fn perform<'a>(
        link: &'a Link,
        due: &'a DueStep<Self::Subject>,
    ) -> BoxFuture<'a, Result<Self::Outcome, RequestError>>;

    /// A step was done.
    fn done(&mut self, due: DueStep<Self::Subject>, outcome: Self::Outcome);

    /// A step has failed so often in a row, although there is a connection.
    fn failed(&mut self, due: &DueStep<Self::Subject>, failures: u32, error: &RequestError);

    /// Resolves when something here has changed. Safe to cancel.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// A step that has ended.
type Ended<P> = (DueStep<<P as ReportedPods>::Subject>, Result<<P as ReportedPods>::Outcome, RequestError>);

/// Reports the pods of one kind.
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
        // What the apiserver has is known before the end of a pod that it has.
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
    /// The steps that are due, whose number is what is unsent; `None`: what the apiserver has is not known yet.
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

    /// When a step that failed or waits is due again, of a pod that is not in flight.
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
            // Without a connection there is nothing to say, and nothing to wait for but the connection.
            Err(_) if !self.link.is_online() => {}
            Err(error) => {
                let failures = self.retries.failed(&due, &error, Instant::now(), fastrand::u64(..));
                self.pods.failed(&due, failures, &error);
            }
        }
    }
}

/// The Pod of that key at the apiserver.
pub(super) fn resource(key: &PodKey) -> Resource {
    Resource::Pod(key.namespace().to_owned(), key.name().to_owned())
}

/// Sends a patch of a pod's status, and returns the status that is stored then; `None`: the pod is not there any more.
pub(super) async fn send_status(link: &Link, key: &PodKey, patch: Value) -> Result<Option<StoredStatus>, RequestError> {
    match link.report_status(key.namespace().to_owned(), key.name().to_owned(), patch).await {
        Ok(stored) => Ok(Some(stored)),
        Err(error) if error.is_not_found() => Ok(None),
        // The same status would be refused again; the next one may not be.
        Err(error) if matches!(error.code(), Some(400 | 422)) => {
            tracing::warn!(pod = %key, %error, "the apiserver rejected the pod status");
            Ok(Some(StoredStatus::default()))
        }
        Err(error) => Err(error),
    }
}

/// Deletes the Pod of that UID at once. One that is not there any more needs no deletion.
pub(super) async fn delete(link: &Link, key: &PodKey, uid: &str) -> Result<(), RequestError> {
    match link.send(Request::delete_now(resource(key), uid)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
