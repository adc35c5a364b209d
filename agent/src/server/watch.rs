//! Streams of JSON lines: one document per line, first the current state, then every change.
//!
//! A slow reader gets fewer and newer lines, never a growing queue: each batch is the difference between the last state
//! sent and the newest.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use super::ServerState;
use super::document::PodChange;
use super::view::{self, Row};
use crate::status::event::Event;
use limpet_core::status::observed::{Changes, Consumer};
use limpet_model::pod::PodKey;

/// The lines of a stream.
pub(super) trait Lines: Send + 'static {
    /// The next lines, once there are any; `None` when there will be no more.
    fn next(&mut self) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// A response that streams `lines` for as long as the client is connected.
pub(super) fn lines(lines: impl Lines) -> Response {
    let batches = stream::unfold(lines, |mut lines| async move {
        let batch = lines.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(batch)), lines))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(batches)).into_response()
}

fn push(batch: &mut Vec<u8>, document: &impl Serialize) {
    let start = batch.len();
    // Writing to memory cannot fail, and the documents have string keys only; half a line would break the stream.
    match serde_json::to_writer(&mut *batch, document) {
        Ok(()) => batch.push(b'\n'),
        Err(_) => batch.truncate(start),
    }
}

/// The changes of the pods. A pod that goes is shown with its last status, then as deleted, even where it came and went
/// between two lines.
pub(super) struct PodWatch {
    state: ServerState,
    changes: Changes,
    consumer: Consumer,
    /// The last statuses in the batch that was handed over; acknowledged when the next one is asked for.
    handed_over: Vec<u64>,
    sent: BTreeMap<PodKey, Row>,
    synced: bool,
}

impl PodWatch {
    pub(super) fn new(state: ServerState) -> Self {
        let changes = state.observed.changes();
        let consumer = state.observed.register("pod watch");
        Self { state, changes, consumer, handed_over: Vec::new(), sent: BTreeMap::new(), synced: false }
    }

    fn difference(&mut self) -> Vec<u8> {
        let (observed, desired) = (self.state.observed.load(), self.state.desired.load());
        let mut now = view::rows(&observed, &self.state.sources.views(), &desired);
        view::remark_refused(&mut now, self.state.cluster.as_ref());
        let node = &*self.state.node_name;
        let mut batch = Vec::new();
        for (version, pod) in self.consumer.awaited(&observed) {
            last(&mut batch, self.sent.remove(&pod.record.key), &Row::of(pod), node);
            self.handed_over.push(version);
        }
        for (_, gone) in self.sent.iter().filter(|(key, _)| !now.contains_key(*key)) {
            push(&mut batch, &PodChange::Deleted(Box::new(gone.entry(node))));
        }
        for (key, row) in &now {
            match self.sent.get(key) {
                None => push(&mut batch, &PodChange::Added(Box::new(row.entry(node)))),
                Some(sent) if !same(sent, row) => push(&mut batch, &PodChange::Modified(Box::new(row.entry(node)))),
                Some(_) => {}
            }
        }
        self.sent = now;
        batch
    }
}

/// The last status of a pod and its deletion. `sent`: what was sent of that key before.
fn last(batch: &mut Vec<u8>, sent: Option<Row>, row: &Row, node: &str) {
    let entry = || Box::new(row.entry(node));
    match sent {
        Some(sent) if sent.record.uid == row.record.uid => {
            // What only sources remarked on it is no news any more.
            if !same_status(&sent, row) {
                push(batch, &PodChange::Modified(entry()));
            }
        }
        other => {
            if let Some(other) = other {
                push(batch, &PodChange::Deleted(Box::new(other.entry(node))));
            }
            push(batch, &PodChange::Added(entry()));
        }
    }
    push(batch, &PodChange::Deleted(entry()));
}

fn same(sent: &Row, now: &Row) -> bool {
    same_status(sent, now) && Arc::ptr_eq(&sent.record, &now.record) && sent.note == now.note
}

fn same_status(sent: &Row, now: &Row) -> bool {
    match (&sent.observed, &now.observed) {
        (Some(sent), Some(now)) => Arc::ptr_eq(sent, now),
        (None, None) => true,
        _ => false,
    }
}

impl Lines for PodWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        for version in self.handed_over.drain(..) {
            self.consumer.acknowledge(version);
        }
        loop {
            let mut batch = self.difference();
            if !self.synced {
                self.synced = true;
                push(&mut batch, &PodChange::<()>::Synced);
            }
            if !batch.is_empty() {
                return Some(batch);
            }
            if !self.changes.next().await {
                return None;
            }
        }
    }
}

/// The node's events, starting with the recorded ones.
pub(super) struct EventWatch {
    state: ServerState,
    about: Option<PodKey>,
    sent: HashMap<EventId, u32>,
}

/// What identifies an event; its count is not part of it.
type EventId = (Option<PodKey>, Option<String>, &'static str, String);

impl EventWatch {
    pub(super) fn new(state: ServerState, about: Option<PodKey>) -> Self {
        Self { state, about, sent: HashMap::new() }
    }

    fn difference(&mut self) -> Vec<u8> {
        let mut batch = Vec::new();
        let mut sent = HashMap::new();
        for event in self.state.events.snapshot() {
            let matches = self.about.as_ref().is_none_or(|key| view::is_about(&event, key));
            if !matches {
                continue;
            }
            if self.sent.get(&id(&event)) != Some(&event.count) {
                push(&mut batch, &event.as_kubernetes(&self.state.node_name));
            }
            sent.insert(id(&event), event.count);
        }
        // Only recorded events are remembered, so this is bounded as they are.
        self.sent = sent;
        batch
    }
}

fn id(event: &Event) -> EventId {
    (event.pod.as_ref().map(|(key, _)| key.clone()), event.container.clone(), event.reason, event.message.clone())
}

impl Lines for EventWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let events = self.state.events.clone();
            let mut changed = std::pin::pin!(events.changed());
            // Polled once before the events are read, so that every event recorded from here on wakes it.
            let recorded = futures_util::poll!(changed.as_mut()).is_ready();
            let batch = self.difference();
            if !batch.is_empty() {
                return Some(batch);
            }
            if !recorded {
                changed.await;
            }
        }
    }
}
