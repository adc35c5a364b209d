//! A pod as the sources publish it: decoded, defaulted, validated and named. It is never copied again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod::compute_resources::CgroupLimits;
use crate::pod::qos::QosClass;
use crate::pod::{Fingerprint, PodKey, PodUid};
use crate::source::SourceKind;

/// One accepted version of one pod. Shared by `Arc` from the source to the worker.
#[derive(Debug, Clone)]
pub struct PodRecord {
    /// Namespace and node-suffixed name.
    pub key: PodKey,
    /// Derived from node, source, key and the fields that cannot change in place, or set in the manifest.
    pub uid: PodUid,
    /// Hash of the whole manifest as authored, which differs if anything differs.
    pub fingerprint: Fingerprint,
    /// Hash of the fields that cannot change in place, which differs if the pod has to be recreated.
    pub immutable_fingerprint: Fingerprint,
    /// The source that published it.
    pub source: SourceKind,
    /// Its origin within the source: a file's name, a URL.
    pub origin: Arc<str>,
    /// The manifest as authored, canonical JSON, as stored on disk and on the container.
    pub manifest: Arc<[u8]>,
    /// The defaulted Kubernetes object, with name, namespace, uid, nodeName and annotations settled.
    pub pod: Pod,
    /// Its ephemeral containers, in the form of the others.
    pub ephemeral: Vec<Container>,
    /// Its quality-of-service class. Computed once, because every plan and every status needs it.
    pub qos_class: QosClass,
    /// The limits of its cgroup, computed once for the same reason.
    pub cgroup_limits: CgroupLimits,
}

impl PodRecord {
    /// The pod's spec. Validation refuses a manifest without one, so it is always there.
    pub fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// Its containers of every role: init containers and sidecars, regular and ephemeral ones.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        let spec = self.spec();
        spec.init_containers.iter().flatten().chain(&spec.containers).chain(&self.ephemeral)
    }

    /// The spec of the container called `name`.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers().find(|container| container.name == name)
    }

    /// Whether its source requests its graceful deletion.
    pub fn is_deleting(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Whether its source says that it has ended for good. A pod of the apiserver has if a final phase was reported.
    pub fn has_ended(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase.is_some_and(is_terminal_phase)
    }

    /// The source's deletion timestamp and grace period in seconds.
    pub fn deletion(&self) -> (Option<&Time>, Option<i64>) {
        let metadata = &self.pod.metadata;
        (metadata.deletion_timestamp.as_ref(), metadata.deletion_grace_period_seconds)
    }

    /// Whether the pod shares the host's network namespace.
    pub fn host_network(&self) -> bool {
        self.spec().host_network.unwrap_or(false)
    }

    /// Seconds between SIGTERM and SIGKILL, at least 1 (`calculateEffectiveGracePeriod` in kubelet's `pod_workers.go`).
    pub fn grace_seconds(&self) -> u64 {
        u64::try_from(self.spec().termination_grace_period_seconds.unwrap_or(30)).unwrap_or(0).max(1)
    }
}

/// Whether a pod in that phase has ended for good.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Two records are equal if they are the same version of the same pod. The fingerprint is compared instead of the
/// spec.
impl PartialEq for PodRecord {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
            && self.uid == other.uid
            && self.key == other.key
            && self.source == other.source
            && self.origin == other.origin
            && self.deletion() == other.deletion()
            && self.pod.status == other.pod.status
    }
}

/// With this, two `Arc`s of one record compare equal by pointer.
impl Eq for PodRecord {}
