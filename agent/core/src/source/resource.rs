//! The kinds that can be pushed, with the names an apiserver uses for them.

use limpet_model::object::ObjectKind;

/// A kind that can be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Pod,
    /// ConfigMaps or Secrets.
    Object(ObjectKind),
}

impl Resource {
    /// As in an API path: `pods`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Object(ObjectKind::ConfigMap) => "configmaps",
            Self::Object(ObjectKind::Secret) => "secrets",
            Self::Object(ObjectKind::ServiceAccountToken) => "serviceaccounts/token",
            Self::Object(ObjectKind::ServiceVariables) => "services",
            Self::Object(ObjectKind::VolumeClaim) => "persistentvolumeclaims",
            Self::Object(ObjectKind::TrustBundle) => "clustertrustbundles",
            Self::Object(ObjectKind::RuntimeClass) => "runtimeclasses",
            Self::Object(ObjectKind::PodCertificate) => "podcertificaterequests",
        }
    }

    /// As in kubectl's output: `pod`.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Object(kind) => kind.resource(),
        }
    }

    /// As in a manifest: `Pod`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Object(kind) => kind.as_str(),
        }
    }

    /// The kind by one of the names kubectl accepts.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "pod" | "pods" | "po" => Some(Self::Pod),
            "configmap" | "configmaps" | "cm" => Some(Self::Object(ObjectKind::ConfigMap)),
            "secret" | "secrets" => Some(Self::Object(ObjectKind::Secret)),
            _ => None,
        }
    }

    /// The agent's API path of the object of that name.
    pub fn path(self, namespace: &str, name: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/{}/{name}", self.plural())
    }
}
