//! An object as the sources publish it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::local_claim::{self, LocalClaim};
use crate::object::local_service::LocalService;
use crate::object::secret_bytes::SecretBytes;
use crate::object::workload::{self, Workload};
use crate::pod::Fault;

/// One value of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub bytes: SecretBytes,
    /// Whether it is from a ConfigMap's `binaryData`, usable in files but not in environment variables.
    pub binary: bool,
}

/// One accepted version of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Which object it is.
    pub key: ObjectKey,
    /// Its origin within the source: a file's name, a URL.
    pub origin: Arc<str>,
    /// Its UID, which differs for two successive objects of one name. Empty if it has none.
    pub uid: Arc<str>,
    /// Whether its data must not change any more.
    pub immutable: bool,
    /// A Secret's type; empty for a ConfigMap.
    pub secret_type: Arc<str>,
    /// Its values by key.
    pub data: BTreeMap<String, Entry>,
    /// The workload's definition; `None` for an object that is none of [`ObjectKind::WORKLOADS`].
    pub workload: Option<Arc<Workload>>,
    /// What a claim of a manifest asks for; `None` for any other object.
    pub claim: Option<Arc<LocalClaim>>,
    /// What a Service of a manifest is; `None` for any other object.
    pub service: Option<Arc<LocalService>>,
}

impl ObjectRecord {
    /// An object with these texts, of a kind that no manifest defines.
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
            workload: None,
            claim: None,
            service: None,
        }
    }

    /// The object of a workload.
    pub(crate) fn of_workload((key, workload): (ObjectKey, Workload), origin: &Arc<str>) -> Self {
        Self { workload: Some(Arc::new(workload)), ..Self::without_data(key, origin) }
    }

    /// The object of a claim of a manifest, or of one that a StatefulSet makes.
    pub fn of_claim((key, claim): (ObjectKey, LocalClaim), origin: &Arc<str>) -> Self {
        Self { claim: Some(Arc::new(claim)), ..Self::without_data(key, origin) }
    }

    /// The object of a Service of a manifest.
    pub(crate) fn of_service((key, service): (ObjectKey, LocalService), origin: &Arc<str>) -> Self {
        Self { service: Some(Arc::new(service)), ..Self::without_data(key, origin) }
    }

    fn without_data(key: ObjectKey, origin: &Arc<str>) -> Self {
        Self {
            key,
            origin: Arc::clone(origin),
            uid: Arc::default(),
            immutable: false,
            secret_type: Arc::default(),
            data: BTreeMap::new(),
            workload: None,
            claim: None,
            service: None,
        }
    }

    /// Whether `other` gives pods the same values.
    pub fn same_content(&self, other: &Self) -> bool {
        self.data == other.data
            && self.secret_type == other.secret_type
            && self.workload == other.workload
            && self.claim == other.claim
            && self.service == other.service
    }

    /// Why `next` must not replace it: an immutable object keeps its data and stays immutable, and some fields of a
    /// workload cannot change.
    pub fn forbids(&self, next: &Self) -> Option<Fault> {
        if let (Some(before), Some(next)) = (&self.workload, &next.workload) {
            return workload::forbidden(&self.key, before, next);
        }
        if let (Some(before), Some(next)) = (&self.claim, &next.claim) {
            return local_claim::forbidden(&self.key, before, next);
        }
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
        let workload = self.workload.as_deref().map(|workload| Arc::new(workload.in_namespace(namespace)));
        let claim = self.claim.as_deref().map(|claim| Arc::new(claim.in_namespace(namespace)));
        let service = self.service.as_deref().map(|service| Arc::new(service.in_namespace(namespace)));
        let key = ObjectKey { namespace: Arc::from(namespace), ..self.key.clone() };
        Self { key, workload, claim, service, ..self.clone() }
    }

    /// Decodes an object of a kind that no manifest defines, stored as [`Self::manifest`].
    ///
    /// # Errors
    ///
    /// It has another form.
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
        let secret_type = Arc::default();
        Ok(Self { key, origin, uid, immutable: false, secret_type, data, workload: None, claim: None, service: None })
    }

    /// The object as one JSON document for [`super::restore`], as stored on disk. It contains the values.
    pub fn manifest(&self) -> Arc<[u8]> {
        if let Some(workload) = &self.workload {
            return Arc::clone(&workload.manifest);
        }
        if let Some(claim) = &self.claim {
            return Arc::clone(&claim.manifest);
        }
        if let Some(service) = &self.service {
            return Arc::clone(&service.manifest);
        }
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
