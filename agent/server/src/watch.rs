//! Streams of JSON lines: one document per line, first the current state, then every change.
//!
//! A slow reader gets fewer and newer lines, never a growing queue: each batch is the difference between the last
//! state sent and the newest.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use super::pod_changes::{ChangeKind, PodChanges, Remarks};
use super::{ServerState, view};
use limpet_model::pod::PodKey;
use limpet_telemetry::event::{Event, InvolvedObject};
use limpet_wire::pods::PodChange;

/// The lines of a stream.
pub(super) trait Lines: Send + 'static {
    /// The next lines; `None` once there will be no more.
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

/// Appends a document as a line.
pub(super) fn push(batch: &mut Vec<u8>, document: &impl Serialize) {
    let start = batch.len();
    // Writing to memory cannot fail, and the documents have string keys only. A partial line would break the stream.
    match serde_json::to_writer(&mut *batch, document) {
        Ok(()) => batch.push(b'\n'),
        Err(_) => batch.truncate(start),
    }
}

/// The changes of pods as lines of `PodChange` documents.
pub(super) struct PodWatch {
    changes: PodChanges,
    node: Arc<str>,
    synced: bool,
}

impl PodWatch {
    pub(super) fn new(state: ServerState) -> Self {
        let node = Arc::clone(&state.node_name);
        Self { changes: PodChanges::new(state, Remarks::Shown), node, synced: false }
    }
}

impl Lines for PodWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        let changes = if self.synced { self.changes.next().await? } else { self.changes.first() };
        let mut batch = Vec::new();
        for (kind, row) in &changes {
            let entry = Box::new(row.entry(&self.node));
            let change = match kind {
                ChangeKind::Added => PodChange::Added(entry),
                ChangeKind::Modified => PodChange::Modified(entry),
                ChangeKind::Deleted => PodChange::Deleted(entry),
            };
            push(&mut batch, &change);
        }
        if !self.synced {
            self.synced = true;
            push(&mut batch, &PodChange::<()>::Synced);
        }
        Some(batch)
    }
}

/// The node's events, starting with the recorded ones.
pub(super) struct EventWatch {
    state: ServerState,
    about: Option<PodKey>,
    sent: HashMap<EventId, u32>,
}

/// An event's identity, without its count.
type EventId = (InvolvedObject, Option<String>, Cow<'static, str>, String);

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
    (event.involved.clone(), event.field_path.clone(), event.reason.clone(), event.message.clone())
}

impl Lines for EventWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let events = self.state.events.clone();
            let mut changed = std::pin::pin!(events.changed());
            // Polled before the events are read, so that every event recorded from here on wakes it.
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
