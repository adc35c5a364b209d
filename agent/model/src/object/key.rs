//! Which objects there are, and what identifies one.

use std::fmt;
use std::sync::Arc;

/// The kinds of local object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// `v1 ConfigMap`.
    ConfigMap,
    /// `v1 Secret`.
    Secret,
    /// A token that an apiserver has issued for one pod. It is not an object of the API, but is used like one. See
    /// [`super::token`].
    ServiceAccountToken,
    /// The variables of a namespace's Services, which are not an object of the API either. See [`super::service`].
    ServiceVariables,
    /// A `v1 PersistentVolumeClaim` with the volume that it is bound to. See [`super::claim`].
    VolumeClaim,
    /// The certificates of `v1 ClusterTrustBundle`s. See [`super::trust_bundle`].
    TrustBundle,
    /// A `v1 RuntimeClass`. See [`super::runtime_class`].
    RuntimeClass,
    /// A certificate that a signer has issued for one pod, with its key. See [`super::pod_certificate`].
    PodCertificate,
    /// A `v1 PersistentVolumeClaim` of a manifest. See [`super::local_claim`].
    PersistentVolumeClaim,
    /// An `apps/v1 Deployment`. See [`super::workload`].
    Deployment,
    /// An `apps/v1 ReplicaSet`.
    ReplicaSet,
    /// An `apps/v1 DaemonSet`.
    DaemonSet,
    /// An `apps/v1 StatefulSet`.
    StatefulSet,
    /// A `batch/v1 Job`.
    Job,
    /// A `batch/v1 CronJob`.
    CronJob,
    /// A `v1 Service` of a manifest. See [`super::local_service`].
    Service,
}

impl ObjectKind {
    /// The kinds of which the node's own controllers make pods.
    pub const WORKLOADS: [Self; 6] =
        [Self::Deployment, Self::ReplicaSet, Self::DaemonSet, Self::StatefulSet, Self::Job, Self::CronJob];
    /// The kinds that a manifest may define.
    pub const LOCAL: [Self; 10] = [
        Self::ConfigMap,
        Self::Secret,
        Self::PersistentVolumeClaim,
        Self::Deployment,
        Self::ReplicaSet,
        Self::DaemonSet,
        Self::StatefulSet,
        Self::Job,
        Self::CronJob,
        Self::Service,
    ];

    /// The kind as manifests write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ServiceAccountToken => "ServiceAccountToken",
            Self::ServiceVariables => "ServiceVariables",
            Self::VolumeClaim | Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::TrustBundle => "ClusterTrustBundle",
            Self::RuntimeClass => "RuntimeClass",
            Self::PodCertificate => "PodCertificate",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Service => "Service",
        }
    }

    /// The kind as in kubectl's output and an apiserver's "not found" message, with its group.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::ServiceAccountToken => "service account token",
            Self::ServiceVariables => "service variables",
            Self::VolumeClaim | Self::PersistentVolumeClaim => "persistentvolumeclaim",
            Self::TrustBundle => "clustertrustbundle",
            Self::RuntimeClass => "runtimeclass",
            Self::PodCertificate => "pod certificate",
            Self::Deployment => "deployment.apps",
            Self::ReplicaSet => "replicaset.apps",
            Self::DaemonSet => "daemonset.apps",
            Self::StatefulSet => "statefulset.apps",
            Self::Job => "job.batch",
            Self::CronJob => "cronjob.batch",
            Self::Service => "service",
        }
    }

    /// The kinds that only an apiserver has, and that no manifest defines.
    pub(super) const OF_APISERVER: [Self; 6] = [
        Self::ServiceAccountToken,
        Self::ServiceVariables,
        Self::VolumeClaim,
        Self::TrustBundle,
        Self::RuntimeClass,
        Self::PodCertificate,
    ];

    /// Whether a manifest may define one.
    pub fn is_local(self) -> bool {
        Self::LOCAL.contains(&self)
    }

    /// Whether the node's own controllers make pods of it.
    pub fn is_workload(self) -> bool {
        Self::WORKLOADS.contains(&self)
    }

    /// The API group and version as manifests write it.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::ReplicaSet | Self::DaemonSet | Self::StatefulSet => "apps/v1",
            Self::Job | Self::CronJob => "batch/v1",
            _ => "v1",
        }
    }

    /// The kind of that name, of those that a manifest may define.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::LOCAL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Kind, namespace and name: the target of a reference. The parts follow Kubernetes' rules for names, except the name
/// of a token or a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectKey {
    pub fn new(kind: ObjectKind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}
