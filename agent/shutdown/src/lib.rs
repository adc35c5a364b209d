//! Ends the pods when the node shuts down, by kubelet's rules, and runs them again if that is cancelled.
//!
//! [`NodeShutdown`] is one task: it learns of a shutdown from logind ([`logind`]) or from the local socket, tells the
//! supervisor, and orders the pods to end in the steps that [`limpet_core::node_shutdown`] plans. logind delays the
//! machine's shutdown while the task holds an inhibitor lock. Without `shutdownGracePeriod` there is no connection to
//! logind, and the task sleeps until an operator requests a shutdown.

mod ending;
pub mod logind;
mod record;

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_core::node_shutdown::{Cancelled, ShutdownOrder, ShutdownPolicy, ShutdownProgress, ShutdownRequest};
use limpet_core::status::observed::Observed;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::Metrics;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use ending::Ending;
use logind::{Announcement, InhibitorLock, Logind};
use record::ShutdownRecord;

/// kubelet's reason for events about a shutdown.
const EVENT: &str = "Shutdown";

/// The task that ends the pods when the node shuts down.
#[derive(Debug)]
pub struct NodeShutdown {
    /// The order and the periods of the pods' ends.
    pub policy: ShutdownPolicy,
    /// Announces the shutdown of the machine; `None`: only an operator requests one.
    pub logind: Option<Logind>,
    pub observed: Observed,
    /// From the local socket.
    pub requests: mpsc::Receiver<ShutdownRequest>,
    /// To the supervisor: whether the node is shutting down.
    pub shutting_down: watch::Sender<bool>,
    /// To the workers of pods that have to end.
    pub orders: mpsc::Sender<ShutdownOrder>,
    /// How far it is, for those who watch.
    pub progress: watch::Sender<ShutdownProgress>,
    /// The file that keeps the times of the last shutdown across the next boot.
    pub record: PathBuf,
    pub events: Events,
    pub metrics: Metrics,
}

/// The causes of the shutdown, and the work in progress.
#[derive(Default)]
struct Causes {
    machine: bool,
    operator: bool,
    /// Ending the pods, until that is done.
    ending: Option<BoxFuture<'static, ()>>,
    /// Released once the pods have ended.
    locks: Vec<InhibitorLock>,
    began: Option<Timestamp>,
}

impl NodeShutdown {
    /// Works until the agent stops.
    pub async fn run(mut self, stop: CancellationToken) {
        self.show_times(record::load(&self.record).await);
        let (announce, mut announcements) = mpsc::channel(1);
        let mut following = match self.logind.take() {
            Some(logind) => logind.follow(announce, self.events.clone()),
            None => Box::pin(std::future::pending()),
        };
        let mut causes = Causes::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut following => {}
                Some(announcement) = announcements.recv() => self.announced(&mut causes, announcement),
                Some(request) = self.requests.recv() => self.requested(&mut causes, request),
                () = over(&mut causes.ending), if causes.ending.is_some() => {
                    causes.ending = None;
                    // The machine shuts down as soon as the last lock is closed.
                    causes.locks.clear();
                }
            }
        }
    }

    fn announced(&self, causes: &mut Causes, Announcement { shutting_down, lock }: Announcement) {
        if shutting_down != causes.machine {
            let what = if shutting_down { "event" } else { "cancellation" };
            tracing::warn!(shutting_down, "logind announced a change of the machine's shutdown");
            let message = format!("Shutdown manager detected shutdown {what}");
            self.events.emit(None, None, EventType::Normal, EVENT, message);
        }
        let before = causes.is_shutting_down();
        causes.machine = shutting_down;
        causes.locks.extend(lock);
        self.settle(causes, before);
    }

    fn requested(&self, causes: &mut Causes, request: ShutdownRequest) {
        let before = causes.is_shutting_down();
        match request {
            ShutdownRequest::Begin(done) => {
                if !causes.operator {
                    tracing::warn!("the operator ends the pods of this node");
                    let message = "The operator ends the pods of this node".to_owned();
                    self.events.emit(None, None, EventType::Normal, EVENT, message);
                }
                causes.operator = true;
                self.settle(causes, before);
                // The caller may have gone.
                let _ = done.send(());
            }
            ShutdownRequest::Cancel(done) => {
                let answer = match (before, causes.machine) {
                    (false, _) => Cancelled::NotShuttingDown,
                    (true, true) => Cancelled::ByMachine,
                    (true, false) => {
                        tracing::warn!("the operator has cancelled the shutdown: pods run again");
                        let message = "The operator cancelled the shutdown: pods run again".to_owned();
                        self.events.emit(None, None, EventType::Normal, EVENT, message);
                        causes.operator = false;
                        self.settle(causes, before);
                        Cancelled::Yes
                    }
                };
                let _ = done.send(answer);
            }
        }
    }

    /// Begins to end the pods, or cancels that.
    fn settle(&self, causes: &mut Causes, before: bool) {
        let now = causes.is_shutting_down();
        if now && causes.ending.is_none() && (!before || !causes.locks.is_empty()) {
            self.shutting_down.send_replace(true);
            causes.ending = Some(self.end_pods(*causes.began.get_or_insert_with(Timestamp::now), causes.machine));
        }
        if before && !now {
            *causes = Causes::default();
            self.progress.send_replace(ShutdownProgress::default());
            self.shutting_down.send_replace(false);
        }
    }

    /// Ends the pods, and records the times. A slow disk delays no pod.
    fn end_pods(&self, began: Timestamp, strict: bool) -> BoxFuture<'static, ()> {
        let ending = Ending {
            policy: self.policy.clone(),
            observed: self.observed.clone(),
            orders: self.orders.clone(),
            progress: self.progress.clone(),
            strict,
        };
        ending.announce();
        let times = ShutdownRecord { start_time: Some(began), end_time: None };
        self.show_times(times);
        let (file, metrics) = (self.record.clone(), self.metrics.clone());
        Box::pin(async move {
            tokio::join!(record::store(&file, times), ending.run());
            let times = ShutdownRecord { end_time: Some(Timestamp::now()), ..times };
            metrics.set_shutdown_times(times.start_time, times.end_time);
            record::store(&file, times).await;
            tracing::warn!("the pods have ended for the shutdown");
        })
    }

    fn show_times(&self, ShutdownRecord { start_time, end_time }: ShutdownRecord) {
        self.metrics.set_shutdown_times(start_time, end_time);
    }
}

impl Causes {
    fn is_shutting_down(&self) -> bool {
        self.machine || self.operator
    }
}

/// Resolves with the future; never if there is none.
async fn over(ending: &mut Option<BoxFuture<'static, ()>>) {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
