//! What the cluster tells the source of the apiserver's pods.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cluster_history::{ClusterHistory, HistoryBreak, Renewal};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::PodKey;

/// How many updates may wait. Beyond that, their senders wait.
pub const UPDATE_QUEUE_LEN: usize = 16;

/// What is new at the apiserver.
#[derive(Debug)]
pub enum Update {
    /// All Pods that are bound to the node, from an apiserver with that history.
    Listed(Vec<Value>, ClusterHistory),
    /// A Pod that is new or was changed.
    Stored(Value),
    /// A Pod that is gone.
    Deleted(Value),
    /// The apiserver has reached that version.
    Reached(String),
    /// The apiserver has confirmed this renewal of the node's lease.
    Renewed(Renewal),
    /// Asks for the last confirmed renewal.
    LastRenewal(oneshot::Sender<Renewal>),
    /// The cluster has gone back to an older state; a list will follow.
    WentBack(HistoryBreak),
    /// The operator accepts the cluster as it is, so what it does not have ends. Answered with these pods.
    Accepted(oneshot::Sender<Vec<PodKey>>),
    /// An object that pods refer to: its newest version, or `None` if it does not exist.
    Object(ObjectKey, Option<Arc<ObjectRecord>>),
}

/// A channel for updates.
pub fn channel() -> (mpsc::Sender<Update>, mpsc::Receiver<Update>) {
    mpsc::channel(UPDATE_QUEUE_LEN)
}
