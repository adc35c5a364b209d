//! An object as the sources publish it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::object::SecretBytes;
use crate::pod::Fault;

/// The kinds of local object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// `v1 ConfigMap`.
    ConfigMap,
    /// `v1 Secret`.
    Secret,
    /// A token that an apiserver has issued for one pod: no object of the API, but used like one. See [`super::token`].
    ServiceAccountToken,
    /// The variables of a namespace's Services, which no object of the API has either. See [`super::service`].
    ServiceVariables,
    /// A `v1 PersistentVolumeClaim` with the volume that it is bound to. See [`super::claim`].
    VolumeClaim,
    /// The certificates of `v1 ClusterTrustBundle`s. See [`super::trust_bundle`].
    TrustBundle,
    /// A `v1 RuntimeClass`. See [`super::runtime_class`].
    RuntimeClass,
    /// A certificate that a signer has issued for one pod, with its key. See [`super::pod_certificate`].
    PodCertificate,
}

impl ObjectKind {
    /// The kind as manifests write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ServiceAccountToken => "ServiceAccountToken",
            Self::ServiceVariables => "ServiceVariables",
            Self::VolumeClaim => "PersistentVolumeClaim",
            Self::TrustBundle => "ClusterTrustBundle",
            Self::RuntimeClass => "RuntimeClass",
            Self::PodCertificate => "PodCertificate",
        }
    }

    /// The kind as in an apiserver's "not found" message.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::ServiceAccountToken => "service account token",
            Self::ServiceVariables => "service variables",
            Self::VolumeClaim => "persistentvolumeclaim",
            Self::TrustBundle => "clustertrustbundle",
            Self::RuntimeClass => "runtimeclass",
            Self::PodCertificate => "pod certificate",
        }
    }

    /// The kinds that an apiserver alone has, and no manifest defines.
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
        matches!(self, Self::ConfigMap | Self::Secret)
    }

    /// The kind of that name, of those that a manifest may define.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::ConfigMap, Self::Secret].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Kind, namespace and name: the target of a reference. The parts have passed Kubernetes' name rules, but for the name of a
/// token or a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// What kind of object it is.
    pub kind: ObjectKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Makes a key.
    pub fn new(kind: ObjectKind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// One value of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its content.
    pub bytes: SecretBytes,
    /// It is from a ConfigMap's `binaryData`: usable in files, not in environment variables.
    pub binary: bool,
}

/// One accepted version of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Which object it is.
    pub key: ObjectKey,
    /// Its origin within the source: a file's name, a URL.
    pub origin: Arc<str>,
    /// Its UID: two objects of one name that followed each other differ in it. Empty for one that has none.
    pub uid: Arc<str>,
    /// Its data must not change any more.
    pub immutable: bool,
    /// A Secret's type; empty for a ConfigMap.
    pub secret_type: Arc<str>,
    /// Its values by key.
    pub data: BTreeMap<String, Entry>,
}

impl ObjectRecord {
    /// An object of a kind that no manifest defines, with these texts.
    pub(super) fn of_texts<K: Into<String>>(
        key: ObjectKey,
        origin: &str,
        texts: impl IntoIterator<Item = (K, String)>,
    ) -> Self {
        let entry = |text: String| Entry { bytes: SecretBytes::new(text.into_bytes()), binary: false };
        Self {
            key,
            origin: Arc::from(origin),
            uid: Arc::default(),
            immutable: false,
            secret_type: Arc::from(""),
            data: texts.into_iter().map(|(name, text)| (name.into(), entry(text))).collect(),
        }
    }

    /// Whether `other` gives pods the same values.
    pub fn same_content(&self, other: &Self) -> bool {
        self.data == other.data && self.secret_type == other.secret_type
    }

    /// Why `next` must not replace it: an immutable object keeps its data and stays immutable.
    pub fn forbids(&self, next: &Self) -> Option<Fault> {
        let allowed = !self.immutable || (next.immutable && self.same_content(next));
        let fault = || {
            let message = format!("{} is immutable: its data cannot change", self.key);
            Fault::error("data", message).with_remedy("give the changed object another name")
        };
        (!allowed).then(fault)
    }

    /// The same object in another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { key: ObjectKey { namespace: Arc::from(namespace), ..self.key.clone() }, ..self.clone() }
    }

    /// Decodes an object of a kind that no manifest defines, stored as [`Self::manifest`].
    ///
    /// # Errors
    /// It was stored otherwise.
    pub(super) fn restore(value: &Value, kind: ObjectKind, origin: &str) -> Result<Self, Vec<Fault>> {
        let damaged = || vec![Fault::error("data", format!("stored {}: damaged", kind.resource()))];
        let text = |field: &Value| field.as_str().map(str::to_owned).ok_or_else(damaged);
        let metadata = &value["metadata"];
        let key = ObjectKey::new(kind, text(&metadata["namespace"])?, text(&metadata["name"])?);
        let mut data = BTreeMap::new();
        for (name, encoded) in value["data"].as_object().into_iter().flatten() {
            let bytes = STANDARD.decode(text(encoded)?).map_err(|_| damaged())?;
            data.insert(name.clone(), Entry { bytes: SecretBytes::new(bytes), binary: false });
        }
        let (origin, uid) = (Arc::from(origin), Arc::default());
        Ok(Self { key, origin, uid, immutable: false, secret_type: Arc::default(), data })
    }

    /// The object as one JSON document for [`super::restore`], as stored on disk. It contains the values.
    pub fn manifest(&self) -> Arc<[u8]> {
        let (mut text, mut binary) = (Map::new(), Map::new());
        for (key, entry) in &self.data {
            let encoded = || Value::String(STANDARD.encode(entry.bytes.expose()));
            match (self.key.kind, entry.binary, entry.bytes.expose_text()) {
                (ObjectKind::ConfigMap, false, Some(plain)) => {
                    text.insert(key.clone(), Value::String(plain.to_owned()))
                }
                (ObjectKind::ConfigMap, ..) => binary.insert(key.clone(), encoded()),
                (..) => text.insert(key.clone(), encoded()),
            };
        }
        let mut manifest = json!({
            "apiVersion": "v1", "kind": self.key.kind.as_str(), "immutable": self.immutable,
            "metadata": {"name": &*self.key.name, "namespace": &*self.key.namespace}, "data": text,
        });
        if !self.uid.is_empty() {
            manifest["metadata"]["uid"] = Value::from(&*self.uid);
        }
        match self.key.kind {
            ObjectKind::ConfigMap => manifest["binaryData"] = Value::Object(binary),
            ObjectKind::Secret => manifest["type"] = Value::String(self.secret_type.to_string()),
            _ => {}
        }
        Arc::from(Zeroizing::new(manifest.to_string().into_bytes()).as_slice())
    }
}
