//! Drives the controllers of workloads within the merge loop: gives them what has changed and the time, has what they
//! remember written before it takes effect, and wakes them when they are due.
//!
//! Without a workload it waits for nothing: no timer, no observed pod.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_core::source::Snapshots;
use limpet_core::status::observed::{Changes, Observed};
use limpet_kinds::{Controllers, MemoryChange, Notice};
use limpet_model::pod::PodRecord;
use limpet_telemetry::event::{EventType, Events};
use tokio::sync::oneshot;

/// Receives the pods of workloads that ran when the agent started, once they are known.
pub type Adopted = oneshot::Receiver<Vec<Arc<PodRecord>>>;

/// Where controllers' memory is kept.
pub trait Ledger: Debug + Send + Sync {
    /// This moment, by the node's clock.
    fn now(&self) -> Timestamp;

    /// Resolves when the node's clock shows `at`, or is set. Cancel safe.
    fn until(&self, at: Timestamp) -> BoxFuture<'_, ()>;

    /// Writes what is remembered from now on. Resolves when it is on disk, or cannot be written in reasonable time: then it
    /// takes effect all the same.
    fn save(self: Arc<Self>, changes: Vec<MemoryChange>) -> BoxFuture<'static, ()>;
}

/// The controllers and what they are driven by.
pub struct Workloads {
    controllers: Controllers,
    ledger: Arc<dyn Ledger>,
    observed: Observed,
    events: Events,
    changes: Changes,
    /// Until they are known.
    adopted: Option<Adopted>,
    /// They are known, but not yet given to the controllers.
    found: Option<Vec<Arc<PodRecord>>>,
    saving: Option<BoxFuture<'static, ()>>,
}

impl Workloads {
    /// Drives `controllers`.
    pub fn new(
        controllers: Controllers,
        ledger: Arc<dyn Ledger>,
        observed: Observed,
        events: Events,
        adopted: Adopted,
    ) -> Self {
        let changes = observed.changes();
        Self { controllers, ledger, observed, events, changes, adopted: Some(adopted), found: None, saving: None }
    }

    /// Resolves when controllers may decide otherwise than before, although no source has published. Cancel safe.
    pub(crate) async fn woken(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.await;
            self.saving = None;
            self.controllers.remembered();
            self.report();
            return;
        }
        if self.controllers.is_idle() {
            return std::future::pending().await;
        }
        let (due, ledger) = (self.controllers.due(), &self.ledger);
        let is_due = async move {
            match due {
                Some(at) => ledger.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            true = self.changes.next() => {}
            found = received(&mut self.adopted) => {
                self.adopted = None;
                self.found = Some(found);
            }
            () = is_due => {}
            else => std::future::pending().await,
        }
    }

    /// The snapshots with the pods of workloads.
    pub(crate) fn expand(&mut self, snapshots: Snapshots) -> Snapshots {
        if self.saving.is_none() {
            if let Some(found) = self.adopted.as_mut().and_then(|adopted| adopted.try_recv().ok()) {
                self.adopted = None;
                self.found = Some(found);
            }
            let (adopted, now) = (self.found.take(), self.ledger.now());
            let changes = self.controllers.turn(&snapshots, &self.observed.load(), adopted, now);
            match changes.is_empty() {
                true => self.report(),
                false => self.saving = Some(Arc::clone(&self.ledger).save(changes)),
            }
        }
        self.controllers.expand(snapshots)
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

/// The pods that ran when the agent started; never if they are known already, or nobody will say. Cancel safe.
async fn received(adopted: &mut Option<Adopted>) -> Vec<Arc<PodRecord>> {
    match adopted {
        Some(receiver) => match receiver.await {
            Ok(found) => found,
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
