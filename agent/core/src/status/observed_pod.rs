//! What is observed of one pod.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use limpet_model::pod::PodRecord;

use super::resources::with_resources;

/// The state of one container beyond the fields of the Pod API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedContainer {
    /// The container's id in containerd, without `containerd://`.
    pub id: String,
    /// The pid of its first process, while it runs.
    pub pid: Option<u32>,
    /// The directory of its logs: `0.log`, `1.log`, one file per attempt.
    pub log_path: PathBuf,
    /// How often it was restarted; also the number of its newest log.
    pub restart_count: u32,
}

/// One pod: its desired version and its observed state.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedPod {
    /// The newest accepted version.
    pub record: Arc<PodRecord>,
    /// The version whose resources it has, while a resize is refused.
    pub allocated: Option<Arc<PodRecord>>,
    /// Whether the node's policy of processors is `static`.
    pub static_cpus: bool,
    /// Phase, conditions and container statuses.
    pub status: PodStatus,
    /// A phrase for the NOTE column: `registry unreachable since 40s`.
    pub note: Option<String>,
    /// When its termination began, while it terminates.
    pub terminating_since: Option<Timestamp>,
    /// Every container that has been created, init containers included, by name.
    pub containers: BTreeMap<String, ObservedContainer>,
}

impl ObservedPod {
    /// The status with the resources of the version that the node has allocated.
    pub fn status_with_resources(&self) -> PodStatus {
        with_resources(self.allocated.as_ref().unwrap_or(&self.record), &self.status)
    }
}
