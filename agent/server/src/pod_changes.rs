//! The difference between the pods that a client was last sent and the newest ones, for every stream of pods.
//!
//! A slow client gets fewer and newer changes, never a growing queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ServerState;
use super::view::{self, Row};
use limpet_core::status::observed::{Changes, Consumer};
use limpet_model::pod::PodKey;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// The client has not seen the pod yet.
    Added,
    /// The pod's status, version or remark changed.
    Modified,
    /// The pod is gone; the row has its last state.
    Deleted,
}

/// Whether changed remarks count as changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remarks {
    Shown,
    /// The client does not see remarks.
    Ignored,
}

type Change = (ChangeKind, Row);

/// The pod changes for one client. A pod that goes is shown with its last status, then as deleted, even if it came
/// and went between two batches.
pub(super) struct PodChanges {
    state: ServerState,
    remarks: Remarks,
    changes: Changes,
    consumer: Consumer,
    /// The last statuses in the batch that was handed over; acknowledged when the next batch is requested.
    handed_over: Vec<u64>,
    sent: BTreeMap<PodKey, Row>,
}

impl PodChanges {
    pub(super) fn new(state: ServerState, remarks: Remarks) -> Self {
        let changes = state.observed.changes();
        let consumer = state.observed.register("pod watch");
        Self { state, remarks, changes, consumer, handed_over: Vec::new(), sent: BTreeMap::new() }
    }

    /// All current pods, as added.
    pub(super) fn first(&mut self) -> Vec<Change> {
        self.difference()
    }

    /// The next changes; `None` once there will be no more.
    pub(super) async fn next(&mut self) -> Option<Vec<Change>> {
        for version in self.handed_over.drain(..) {
            self.consumer.acknowledge(version);
        }
        loop {
            let batch = self.difference();
            if !batch.is_empty() {
                return Some(batch);
            }
            if !self.changes.next().await {
                return None;
            }
        }
    }

    fn difference(&mut self) -> Vec<Change> {
        let (observed, desired) = (self.state.observed.load(), self.state.desired.load());
        let mut now = view::rows(&observed, &self.state.sources.views(), &desired);
        view::remark_refused(&mut now, self.state.cluster.as_ref());
        let mut batch = Vec::new();
        for (version, pod) in self.consumer.awaited(&observed) {
            last(&mut batch, self.sent.remove(&pod.record.key), Row::new(pod));
            self.handed_over.push(version);
        }
        let gone = self.sent.iter().filter(|(key, _)| !now.contains_key(*key));
        batch.extend(gone.map(|(_, gone)| (ChangeKind::Deleted, gone.clone())));
        for (key, row) in &now {
            match self.sent.get(key) {
                None => batch.push((ChangeKind::Added, row.clone())),
                Some(sent) if !same(sent, row, self.remarks) => batch.push((ChangeKind::Modified, row.clone())),
                Some(_) => {}
            }
        }
        self.sent = now;
        batch
    }
}

/// Appends a pod's last status and its deletion. `sent` is the row that the client has of this key.
fn last(batch: &mut Vec<Change>, sent: Option<Row>, row: Row) {
    match sent {
        Some(sent) if sent.record.uid == row.record.uid => {
            // A remark that only sources made is no longer of interest.
            if !same_status(&sent, &row) {
                batch.push((ChangeKind::Modified, row.clone()));
            }
        }
        other => {
            batch.extend(other.map(|other| (ChangeKind::Deleted, other)));
            batch.push((ChangeKind::Added, row.clone()));
        }
    }
    batch.push((ChangeKind::Deleted, row));
}

fn same(sent: &Row, now: &Row, remarks: Remarks) -> bool {
    let same_remark = remarks == Remarks::Ignored || sent.note == now.note;
    same_status(sent, now) && Arc::ptr_eq(&sent.record, &now.record) && same_remark
}

fn same_status(sent: &Row, now: &Row) -> bool {
    match (&sent.observed, &now.observed) {
        (Some(sent), Some(now)) => Arc::ptr_eq(sent, now),
        (None, None) => true,
        _ => false,
    }
}
