//! Drives the controllers of workloads, and the claims, within the merge loop: passes changes and the time to them, has
//! what they remember written before it takes effect, and wakes them when they are due.
//!
//! Without a workload it waits for nothing: no timer, no observed pod.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_core::source::Snapshots;
use limpet_core::status::observed::{Changes, Observed};
use limpet_kinds::{Controllers, MemoryChange, Notice, Progress, WorkloadId};
use limpet_model::object::ObjectKey;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};
use tokio::sync::oneshot;

use crate::claimed_volumes::ClaimedVolumes;

/// Receives the pods of workloads that were running when the agent started.
pub type Adopted = oneshot::Receiver<Vec<Arc<PodRecord>>>;

/// Stores controllers' memory.
pub trait Ledger: Debug + Send + Sync {
    /// The current time by the node's clock.
    fn now(&self) -> Timestamp;

    /// Resolves when the node's clock shows `at`, or is set. Cancel safe.
    fn until(&self, at: Timestamp) -> BoxFuture<'_, ()>;

    /// Writes changed memory. Resolves when it is on disk, or could not be written in reasonable time; it then takes
    /// effect anyway.
    fn save(self: Arc<Self>, changes: Vec<MemoryChange>) -> BoxFuture<'static, ()>;
}

/// The controllers with their inputs.
pub struct Workloads {
    controllers: Controllers,
    ledger: Arc<dyn Ledger>,
    observed: Observed,
    events: Events,
    changes: Changes,
    /// Present until the running pods are known.
    adopted: Option<Adopted>,
    /// Running pods that are known, but were not passed to the controllers yet.
    records: Option<Vec<Arc<PodRecord>>>,
    saving: Option<BoxFuture<'static, ()>>,
    volumes: ClaimedVolumes,
}

impl Workloads {
    /// Drives `controllers` and the claims of `volumes`.
    pub fn new(
        controllers: Controllers,
        ledger: Arc<dyn Ledger>,
        observed: Observed,
        events: Events,
        adopted: Adopted,
        volumes: ClaimedVolumes,
    ) -> Self {
        let (changes, adopted) = (observed.changes(), Some(adopted));
        Self { controllers, ledger, observed, events, changes, adopted, records: None, saving: None, volumes }
    }

    /// Resolves when controllers may decide differently, although no source has published. Cancel safe.
    pub(crate) async fn woken(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.await;
            self.saving = None;
            self.controllers.remembered();
            self.report();
            return;
        }
        let follows = !self.controllers.is_idle() || self.volumes.is_waiting();
        let (due, ledger) = (self.controllers.due(), &self.ledger);
        let is_due = async move {
            match due {
                Some(at) => ledger.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            true = self.changes.next(), if follows => {}
            records = received(&mut self.adopted), if follows => self.receive(records),
            () = is_due => {}
            () = self.volumes.done() => {}
            else => std::future::pending().await,
        }
    }

    /// How far the controller of a workload has come.
    pub(crate) fn progress(&self, source: SourceKind, key: &ObjectKey) -> Option<Progress> {
        self.controllers.progress(&WorkloadId { source, key: key.clone() })
    }

    /// The snapshots with the pods of workloads. `on_trial`: the sources whose earlier generation may come back, with its
    /// claims.
    pub(crate) fn expand(&mut self, snapshots: Snapshots, on_trial: &[SourceKind]) -> Snapshots {
        if self.saving.is_none() {
            if let Some(records) = self.adopted.as_mut().and_then(|adopted| adopted.try_recv().ok()) {
                self.receive(records);
            }
            let (adopted, now) = (self.records.take(), self.ledger.now());
            let changes = self.controllers.turn(&snapshots, &self.observed.load(), adopted, now);
            match changes.is_empty() {
                true => self.report(),
                false => self.saving = Some(Arc::clone(&self.ledger).save(changes)),
            }
        }
        let snapshots = self.controllers.expand(snapshots);
        // Claims of StatefulSets that have come back are not there before the decisions about them are on disk.
        let kept = if self.saving.is_some() { &SourceKind::ALL[..] } else { on_trial };
        self.volumes.expand(snapshots, &self.observed.load(), kept)
    }

    fn receive(&mut self, records: Vec<Arc<PodRecord>>) {
        self.adopted = None;
        self.volumes.adopt(&records);
        self.records = Some(records);
    }

    /// Records what the controllers report as events, and logs it.
    fn report(&mut self) {
        for Notice { object, uid, is_warning, reason, message } in self.controllers.take_notices() {
            let event_type = match is_warning {
                true => {
                    tracing::warn!(workload = %object, "{reason}: {message}");
                    EventType::Warning
                }
                false => {
                    tracing::info!(workload = %object, "{reason}: {message}");
                    EventType::Normal
                }
            };
            self.events.emit_of_workload((object, uid), event_type, reason, message);
        }
    }
}

/// The pods that were running when the agent started; never resolves if they are already known, or the sender is
/// gone. Cancel safe.
async fn received(adopted: &mut Option<Adopted>) -> Vec<Arc<PodRecord>> {
    match adopted {
        Some(receiver) => match receiver.await {
            Ok(records) => records,
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
