//! The resize of a running container, from one version of the pod to another. Part of [`super`].

use std::sync::Arc;
use std::time::Duration;

use super::RetryState;
use limpet_model::pod::PodRecord;

/// The longest back-off before a resize is tried again, because memory may be freed at any moment.
pub const MAX_RESIZE_BACKOFF: Duration = Duration::from_secs(60);

/// A resize of an instance, due or in progress.
#[derive(Debug, Clone)]
pub struct Resize {
    /// The version of its pod whose resources it has.
    pub from: Arc<PodRecord>,
    /// The version whose resources are being set.
    pub setting: Option<Arc<PodRecord>>,
    /// Whether the desired version can be reached in place. If not, what is in progress is waited for, and then the
    /// container is replaced.
    pub in_place: bool,
    /// Whether it is replaced only for its resources.
    pub restarts: bool,
    /// Why it could not be done.
    pub retry: Option<RetryState>,
}

/// An edit whose resources the pod does not have yet, because they do not fit beside those of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferred {
    /// The version with those resources.
    pub desired: Arc<PodRecord>,
    /// What is missing.
    pub message: String,
}
