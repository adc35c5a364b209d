//! What the cluster tells the source of the apiserver's pods.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cluster_history::{ClusterHistory, HistoryBreak, Renewal};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::PodKey;

/// How many updates may wait; then those who send them do.
pub const UPDATE_QUEUE_LEN: usize = 16;

/// What is new at the apiserver.
#[derive(Debug)]
pub enum Update {
    /// These are all Pods bound to the node, by an apiserver with that history.
    Listed(Vec<Value>, ClusterHistory),
    /// One is new or was changed.
    Stored(Value),
    /// One is gone.
    Deleted(Value),
    /// The apiserver has come to that version.
    Reached(String),
    /// The apiserver has confirmed this renewal of the node's lease.
    Renewed(Renewal),
    /// Asks for the last confirmed renewal.
    LastRenewal(oneshot::Sender<Renewal>),
    /// The cluster has gone back; a list will follow.
    WentBack(HistoryBreak),
    /// The operator takes the cluster as it is: what it does not have ends. Answered with these pods.
    Accepted(oneshot::Sender<Vec<PodKey>>),
    /// An object that pods refer to: its newest version, or that there is none.
    Object(ObjectKey, Option<Arc<ObjectRecord>>),
}

/// A channel for updates.
pub fn channel() -> (mpsc::Sender<Update>, mpsc::Receiver<Update>) {
    mpsc::channel(UPDATE_QUEUE_LEN)
}
