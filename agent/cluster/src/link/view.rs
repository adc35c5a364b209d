//! What the rest of the agent is shown of the cluster, with a report for each change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use tokio::sync::watch;

use limpet_core::connectivity::Connectivity;
use limpet_model::pod::PodKey;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::{ApiserverMetrics, Metrics};

/// The connection's state for readers.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    pub server: String,
    /// Whether the apiserver answers.
    pub state: Connectivity,
    /// When it last answered, while it does not.
    pub last_online: Option<Timestamp>,
    /// The number of the node's mirror pods at the apiserver.
    pub mirrors: usize,
    /// Why the apiserver does not show these pods. They run nevertheless.
    pub refused: BTreeMap<PodKey, String>,
}

/// The value of `answered` before the first answer.
const NEVER: i64 = i64::MIN;

/// The view, and where its changes are reported.
#[derive(Debug)]
pub(super) struct SharedView {
    shown: watch::Sender<ClusterView>,
    /// When a request was last answered, in milliseconds since 1970, or [`NEVER`].
    answered: AtomicI64,
    metrics: Metrics,
    events: Events,
}

impl SharedView {
    pub(super) fn new(server: &str, metrics: Metrics, events: Events) -> Self {
        metrics.apiserver().set_connected(server, false);
        let (shown, _) = watch::channel(ClusterView {
            server: server.to_owned(),
            state: Connectivity::Connecting,
            last_online: None,
            mirrors: 0,
            refused: BTreeMap::new(),
        });
        Self { shown, answered: AtomicI64::new(NEVER), metrics, events }
    }

    pub(super) fn load(&self) -> ClusterView {
        self.shown.borrow().clone()
    }

    pub(super) fn metrics(&self) -> &ApiserverMetrics {
        self.metrics.apiserver()
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn is_online(&self) -> bool {
        self.shown.borrow().state.is_online()
    }

    /// The longest pause after this many failures in a row.
    pub(super) fn longest_pause(&self, failures: u32, runs_program: bool) -> std::time::Duration {
        self.shown.borrow().state.longest_pause(failures, runs_program)
    }

    /// Resolves once the server answers or, with `online` false, no longer answers.
    pub(super) async fn wait_for(&self, online: bool) {
        // The sender lives as long as `self`.
        let _ = self.shown.subscribe().wait_for(|view| view.state.is_online() == online).await;
    }

    /// Records that a request was answered.
    pub(super) fn answered(&self) {
        self.answered.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
    }

    pub(super) fn last_answer(&self) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.answered.load(Ordering::Relaxed)).ok()
    }

    /// Changes the pods' part of the view.
    pub(super) fn change_pods(&self, change: impl FnOnce(&mut ClusterView)) {
        self.shown.send_modify(change);
    }

    /// Changes the state, and reports the change.
    pub(super) fn change_state(&self, next: impl FnOnce(&Connectivity) -> Connectivity) {
        let mut report = None;
        self.shown.send_if_modified(|view| {
            let state = next(&view.state);
            if state == view.state {
                return false;
            }
            if state.differs(&view.state) {
                report = Some(view.state.is_online());
            }
            if view.state.is_online() && !state.is_online() {
                view.last_online = Some(Timestamp::now());
            }
            view.state = state;
            true
        });
        if let Some(was_online) = report {
            self.report(was_online);
        }
    }

    /// Writes one log line and one event for each change of the state.
    fn report(&self, was_online: bool) {
        let ClusterView { server, state, .. } = self.load();
        self.metrics.apiserver().set_connected(&server, state.is_online());
        match state {
            Connectivity::Connecting => {}
            Connectivity::Online { .. } => {
                tracing::info!(server, "connected to the apiserver");
                let message = format!("The apiserver {server} answers");
                self.events.emit(None, None, EventType::Normal, "ApiserverConnected", message);
            }
            Connectivity::Offline { cause, message, .. } => {
                tracing::warn!(server, %cause, error = message, "no connection to the apiserver; pods keep running");
                // Going online at the start is not reported.
                if was_online {
                    let message = format!("No connection to the apiserver {server}: {cause}");
                    self.events.emit(None, None, EventType::Warning, "ApiserverDisconnected", message);
                }
            }
        }
    }

    /// Shows this server, because the kubeconfig may have been edited.
    pub(super) fn set_server(&self, server: &str) {
        let mut before = None;
        self.shown.send_if_modified(|view| {
            let differs = view.server != server;
            if differs {
                before = Some(std::mem::replace(&mut view.server, server.to_owned()));
            }
            differs
        });
        if let Some(before) = before {
            self.metrics.apiserver().forget_server(&before);
            self.metrics.apiserver().set_connected(server, self.is_online());
        }
    }
}
