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

/// Why a pod does not have the resources of a newer version: the reason of the condition `PodResizePending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeRefusal {
    /// They do not fit beside those of the others now.
    Deferred,
    /// A pod that runs never gets them here.
    Infeasible,
}

impl ResizeRefusal {
    /// kubelet's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// An edit whose resources the pod does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedResize {
    /// The version with those resources.
    pub desired: Arc<PodRecord>,
    /// Whether it may get them later.
    pub refusal: ResizeRefusal,
    /// What is in the way.
    pub message: String,
}
