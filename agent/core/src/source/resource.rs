//! The kinds that can be pushed, with the names an apiserver uses for them.

use limpet_model::object::ObjectKind;

/// A kind that can be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Pod,
    /// ConfigMaps, Secrets, Services or workloads.
    Object(ObjectKind),
}

impl Resource {
    /// Whether it is a pod, or a workload of pods.
    pub fn has_pods(self) -> bool {
        match self {
            Self::Pod => true,
            Self::Object(kind) => kind.is_workload(),
        }
    }

    /// The plural, as in an API path: `pods`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Object(ObjectKind::ConfigMap) => "configmaps",
            Self::Object(ObjectKind::Secret) => "secrets",
            Self::Object(ObjectKind::ServiceAccountToken) => "serviceaccounts/token",
            Self::Object(ObjectKind::ServiceVariables | ObjectKind::Service) => "services",
            Self::Object(ObjectKind::VolumeClaim | ObjectKind::PersistentVolumeClaim) => "persistentvolumeclaims",
            Self::Object(ObjectKind::TrustBundle) => "clustertrustbundles",
            Self::Object(ObjectKind::RuntimeClass) => "runtimeclasses",
            Self::Object(ObjectKind::PodCertificate) => "podcertificaterequests",
            Self::Object(ObjectKind::Deployment) => "deployments",
            Self::Object(ObjectKind::ReplicaSet) => "replicasets",
            Self::Object(ObjectKind::DaemonSet) => "daemonsets",
            Self::Object(ObjectKind::StatefulSet) => "statefulsets",
            Self::Object(ObjectKind::Job) => "jobs",
            Self::Object(ObjectKind::CronJob) => "cronjobs",
        }
    }

    /// The singular, as in kubectl's output: `pod`.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Object(kind) => kind.resource(),
        }
    }

    /// The kind, as in a manifest: `Pod`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Object(kind) => kind.as_str(),
        }
    }

    /// The kind for one of the names that kubectl accepts.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "pod" | "pods" | "po" => Some(Self::Pod),
            "configmap" | "configmaps" | "cm" => Some(Self::Object(ObjectKind::ConfigMap)),
            "secret" | "secrets" => Some(Self::Object(ObjectKind::Secret)),
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => {
                Some(Self::Object(ObjectKind::PersistentVolumeClaim))
            }
            "deployment" | "deployments" | "deploy" => Some(Self::Object(ObjectKind::Deployment)),
            "replicaset" | "replicasets" | "rs" => Some(Self::Object(ObjectKind::ReplicaSet)),
            "daemonset" | "daemonsets" | "ds" => Some(Self::Object(ObjectKind::DaemonSet)),
            "statefulset" | "statefulsets" | "sts" => Some(Self::Object(ObjectKind::StatefulSet)),
            "job" | "jobs" => Some(Self::Object(ObjectKind::Job)),
            "cronjob" | "cronjobs" | "cj" => Some(Self::Object(ObjectKind::CronJob)),
            "service" | "services" | "svc" => Some(Self::Object(ObjectKind::Service)),
            _ => None,
        }
    }

    /// The root of the API paths of its kind: `/api/v1`, `/apis/apps/v1`.
    pub fn root(self) -> String {
        let version = match self {
            Self::Pod => "v1",
            Self::Object(kind) => kind.api_version(),
        };
        let group = if version.contains('/') { "apis" } else { "api" };
        format!("/{group}/{version}")
    }

    /// The agent's API path of the object of that name.
    pub fn path(self, namespace: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/{}/{name}", self.root(), self.plural())
    }
}
