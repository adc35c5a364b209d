//! PersistentVolumeClaims that a manifest defines: a directory of the node for each, of the StorageClass `local-path`.
//!
//! In: a decoded document. Out: a [`LocalClaim`] within its [`ObjectRecord`](super::ObjectRecord). Which claims there are, and where
//! their directories are, is decided in `limpet-claims`; `limpet-host` makes the directories. Pure: no I/O, no clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use serde_json::{Map, Value};

use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::metadata::{key, metadata, typed};
use crate::pod::{Fault, FaultList, FieldValidation, fingerprint, quantity, strict, validate};

/// The StorageClass of the node's own claims.
pub const LOCAL_PATH: &str = "local-path";
/// The access mode of a claim that one pod may have at a time.
const SINGLE_POD: &str = "ReadWriteOncePod";
/// The field with the size, of which an edit is allowed.
const SIZE: &str = "/resources/requests";

/// One accepted version of one claim of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalClaim {
    /// The whole document without its status, canonical JSON, as stored on disk.
    pub manifest: Arc<[u8]>,
    /// The size that is requested, in bytes.
    pub size: u64,
    /// One pod may have it at a time (`ReadWriteOncePod`).
    pub single_pod: bool,
    /// Its directory is kept when the claim is gone (`persistentVolumeClaimRetentionPolicy`).
    pub retained: bool,
    /// It is deleted, and kept for the pods that have it.
    pub ending: bool,
    /// Where its data is; `None`: not known yet.
    pub directory: Option<Arc<Path>>,
}

impl LocalClaim {
    /// The same with its data in that directory.
    #[must_use]
    pub fn in_directory(&self, directory: &Path) -> Self {
        Self { directory: Some(Arc::from(directory)), ..self.clone() }
    }

    /// The claim as the API has it.
    pub fn object(&self) -> PersistentVolumeClaim {
        serde_json::from_slice(&self.manifest).unwrap_or_default()
    }

    /// The same in another namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Self {
        let mut document: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        document["metadata"]["namespace"] = Value::from(namespace);
        Self { manifest: Arc::from(fingerprint::canonical(&document)), ..self.clone() }
    }

    /// The claim of that name that a StatefulSet makes of a template, which was checked with the set; `None`: it is none.
    pub fn of_template(template: &Value, key: &ObjectKey, retained: bool) -> Option<Self> {
        let mut document = template.clone();
        document["apiVersion"] = Value::from("v1");
        document["kind"] = Value::from(key.kind.as_str());
        document["metadata"]["name"] = Value::from(&*key.name);
        document["metadata"]["namespace"] = Value::from(&*key.namespace);
        document.as_object_mut()?.remove("status");
        let (claim, _) = strict::read::<PersistentVolumeClaim>(&document);
        let spec = claim.ok()?.spec?;
        Some(Self { retained, ..settled(&document, &spec) })
    }
}

/// The directory of a claim, below the directory `base` of all of them, and beside it what is written down about it.
pub fn directory(base: &Path, source: &str, namespace: &str, name: &str) -> PathBuf {
    base.join(source).join(namespace).join(name).join("data")
}

/// Decodes a claim of a manifest: with its key, unless it has an error, and its faults.
pub(crate) fn read(value: &Value, validation: FieldValidation) -> (Option<(ObjectKey, LocalClaim)>, FaultList) {
    let mut faults = FaultList::default();
    let Some(document) = value.as_object() else {
        faults.push(Fault::error("", "must be a map"));
        return (None, faults);
    };
    let metadata = metadata(document, &mut faults);
    let key = key(metadata, ObjectKind::PersistentVolumeClaim, &mut faults);
    let document = without_status(value);
    let spec = typed::<PersistentVolumeClaim>(&document, &mut faults).map(|claim| claim.spec.unwrap_or_default());
    faults.relax(validation);
    if let Some(spec) = &spec {
        faults.absorb(check("spec", spec));
    }
    if faults.errors() > 0 {
        return (None, faults);
    }
    let claim = spec.map(|spec| settled(&in_namespace(document, &key.namespace), &spec));
    (claim.map(|claim| (key, claim)), faults)
}

/// Decodes a claim that was accepted before and stored by limpet. It is not validated again.
///
/// # Errors
/// It is none.
pub(crate) fn restore(value: &Value) -> Result<(ObjectKey, LocalClaim), Vec<Fault>> {
    let mut faults = FaultList::default();
    let metadata = metadata(value.as_object().unwrap_or(&Map::new()), &mut FaultList::default());
    let key = key(metadata, ObjectKind::PersistentVolumeClaim, &mut faults);
    let claim = typed::<PersistentVolumeClaim>(value, &mut FaultList::default()).and_then(|claim| claim.spec);
    match claim.filter(|_| faults.errors() == 0) {
        Some(spec) => Ok((key, settled(value, &spec))),
        None => {
            faults.push(Fault::error("", "stored persistentvolumeclaim: damaged"));
            Err(faults.finish())
        }
    }
}

/// The faults of a claim's spec at `path`: of Kubernetes' rules, and of what a node provides.
pub(super) fn check(path: &str, spec: &PersistentVolumeClaimSpec) -> FaultList {
    let mut faults = validate::claim_spec(path, spec);
    let mut refuse = |field: &str, message: &str, remedy: &str| {
        faults.push(Fault::error(format!("{path}.{field}"), message).with_remedy(remedy));
    };
    match spec.storage_class_name.as_deref() {
        None | Some(LOCAL_PATH) => {}
        Some("") => refuse(
            "storageClassName",
            "an empty name asks for a PersistentVolume that somebody has made, and a node has none",
            "leave it out, or write local-path",
        ),
        Some(other) => {
            let message = format!("storageclass.storage.k8s.io {other:?} not found: a node has local-path");
            refuse("storageClassName", &message, "leave it out, or write local-path");
        }
    }
    let no_volumes = "not supported: a node without an apiserver has no PersistentVolumes to choose from";
    let own_directory = "leave it out: the claim gets a directory of its own; a hostPath volume names an existing one";
    if spec.volume_name.as_deref().is_some_and(|name| !name.is_empty()) {
        refuse("volumeName", no_volumes, own_directory);
    }
    if spec.selector.is_some() {
        refuse("selector", no_volumes, own_directory);
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        let remedy = "leave it out, or use a hostPath volume of a device with volumeDevices";
        refuse("volumeMode", "Block is not supported: local-path provides directories", remedy);
    }
    for (field, is_set) in
        [("dataSource", spec.data_source.is_some()), ("dataSourceRef", spec.data_source_ref.is_some())]
    {
        if is_set {
            let remedy = "leave it out, and copy the data with limpet cp";
            refuse(field, "not supported: local-path has neither snapshots nor clones", remedy);
        }
    }
    if spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        refuse("volumeAttributesClassName", "not supported: local-path has no attributes", "leave it out");
    }
    faults
}

/// Why `next` must not replace `before`, as an apiserver has it.
pub(crate) fn forbidden(key: &ObjectKey, before: &LocalClaim, next: &LocalClaim) -> Option<Fault> {
    let fixed = |claim: &LocalClaim| {
        let mut spec = serde_json::from_slice::<Value>(&claim.manifest).unwrap_or_default()["spec"].take();
        if let Some(size) = spec.pointer_mut(SIZE) {
            *size = Value::Null;
        }
        // Its default.
        if spec["storageClassName"].is_null() {
            spec["storageClassName"] = Value::from(LOCAL_PATH);
        }
        fingerprint::canonical(&spec)
    };
    let fault = |path: &str, message: &str| Some(Fault::error(path, format!("of {key}: Forbidden: {message}")));
    if fixed(before) != fixed(next) {
        let fault = fault("spec", "spec is immutable after creation except resources.requests");
        return fault.map(|fault| fault.with_remedy("give the changed claim another name, or remove it first"));
    }
    if next.size < before.size {
        let fault = fault("spec.resources.requests.storage", "field can not be less than previous value");
        return fault.map(|fault| fault.with_remedy("a claim can only grow"));
    }
    None
}

/// What the claim comes to; its spec was accepted.
fn settled(document: &Value, spec: &PersistentVolumeClaimSpec) -> LocalClaim {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let size = requests.and_then(|requests| quantity::bytes(requests.get("storage")?).ok());
    LocalClaim {
        manifest: Arc::from(fingerprint::canonical(document)),
        size: size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
        single_pod: spec.access_modes.iter().flatten().any(|mode| mode == SINGLE_POD),
        retained: false,
        ending: false,
        directory: None,
    }
}

fn in_namespace(mut document: Value, namespace: &str) -> Value {
    document["metadata"]["namespace"] = Value::from(namespace);
    document
}

fn without_status(value: &Value) -> Value {
    let mut document = value.clone();
    if let Some(document) = document.as_object_mut() {
        document.remove("status");
    }
    document
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
