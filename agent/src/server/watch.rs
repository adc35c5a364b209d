//! Streams of JSON lines: one document a line, the state first, then every change.
//!
//! A reader that is slow gets fewer and newer lines, never a growing queue: each batch is what differs between
//! the snapshot told last and the newest.

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
use limpet_core::status::observed::Changes;
use limpet_model::pod::PodKey;

/// Where a stream takes its lines from.
pub(super) trait Lines: Send + 'static {
    /// The next lines, once there are any; `None` when there will be none.
    fn next(&mut self) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// The answer that carries `lines` for as long as the client listens.
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

/// The changes of the pods.
pub(super) struct PodWatch {
    state: ServerState,
    changes: Changes,
    told: BTreeMap<PodKey, Row>,
    synced: bool,
}

impl PodWatch {
    pub(super) fn new(state: ServerState) -> Self {
        let changes = state.observed.changes();
        Self { state, changes, told: BTreeMap::new(), synced: false }
    }

    fn difference(&mut self) -> Vec<u8> {
        let desired = self.state.desired.load();
        let now = view::rows(&self.state.observed.load(), &self.state.sources.views(), &desired);
        let node = &*self.state.node_name;
        let mut batch = Vec::new();
        for (_, gone) in self.told.iter().filter(|(key, _)| !now.contains_key(*key)) {
            push(&mut batch, &PodChange::Deleted(Box::new(gone.entry(node))));
        }
        for (key, row) in &now {
            match self.told.get(key) {
                None => push(&mut batch, &PodChange::Added(Box::new(row.entry(node)))),
                Some(told) if !same(told, row) => push(&mut batch, &PodChange::Modified(Box::new(row.entry(node)))),
                Some(_) => {}
            }
        }
        self.told = now;
        batch
    }
}

fn same(told: &Row, now: &Row) -> bool {
    let observed = match (&told.observed, &now.observed) {
        (Some(told), Some(now)) => Arc::ptr_eq(told, now),
        (None, None) => true,
        _ => false,
    };
    observed && Arc::ptr_eq(&told.record, &now.record) && told.note == now.note
}

impl Lines for PodWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
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

/// The node's events, those that were kept first.
pub(super) struct EventWatch {
    state: ServerState,
    about: Option<PodKey>,
    told: HashMap<EventId, u32>,
}

/// What makes an event the same as another, its count aside.
type EventId = (Option<PodKey>, Option<String>, &'static str, String);

impl EventWatch {
    pub(super) fn new(state: ServerState, about: Option<PodKey>) -> Self {
        Self { state, about, told: HashMap::new() }
    }

    fn difference(&mut self) -> Vec<u8> {
        let mut batch = Vec::new();
        let mut told = HashMap::new();
        for event in self.state.events.snapshot() {
            let wanted = self.about.as_ref().is_none_or(|key| view::is_about(&event, key));
            if !wanted {
                continue;
            }
            if self.told.get(&id(&event)) != Some(&event.count) {
                push(&mut batch, &view::event(&event, &self.state.node_name));
            }
            told.insert(id(&event), event.count);
        }
        // Only what is still kept is remembered, so this is bounded as the events are.
        self.told = told;
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
            // Polled once before the events are read: what is recorded from here on wakes it.
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
