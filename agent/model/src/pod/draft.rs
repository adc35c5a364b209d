//! A pod as a source has it, before its names are checked, with its defaults and the fields that the node sets.
//!
//! A pod's names become paths, so every record is made from a draft, whatever its source, also when it was stored
//! before.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::pod::compute_resources::pod_limits;
use crate::pod::container_form::as_container;
use crate::pod::qos::qos_class;
use crate::pod::{
    ContainerName, Fault, FaultList, Fingerprint, NameError, PodKey, PodRecord, PodUid, VolumeName, default,
    fingerprint, identity,
};
use crate::source::SourceKind;

/// The request to delete the pod.
pub(crate) const DELETION: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

/// A pod whose names are not checked yet.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) namespace: String,
    /// Its name on the node.
    pub(crate) name: String,
    pub(crate) uid: String,
    /// With defaults, and the fields that the node sets.
    pub(crate) pod: Pod,
    /// As authored, canonical JSON.
    pub(crate) manifest: Vec<u8>,
    fingerprint: Fingerprint,
    immutable_fingerprint: Fingerprint,
    source: SourceKind,
    origin: Arc<str>,
}

impl Draft {
    /// The draft of `pod`, which was decoded from `value`.
    pub(crate) fn new(value: &Value, mut pod: Pod, origin: Arc<str>, source: SourceKind, node_name: &str) -> Self {
        let metadata = &pod.metadata;
        let namespace = identity::namespace_or_default(metadata.namespace.as_deref()).to_owned();
        let name = metadata.name.as_deref().unwrap_or_default();
        let is_stored = source.traits().is_stored;
        // A controller of the node gives its pods names that no other node uses.
        let name = match is_stored || identity::has_owner(value) {
            true => name.to_owned(),
            false => identity::name_on_node(name, node_name),
        };
        let manifest = fingerprint::canonical(value);
        // A pod of an apiserver stays the same version while it is being deleted.
        let version = is_stored.then(|| without_deletion(value));
        let version = version.as_ref().unwrap_or(value);
        let immutable = fingerprint::immutable(version);
        let names = (namespace.as_str(), name.as_str());
        let uid = match metadata.uid.as_deref().filter(|uid| !uid.is_empty()) {
            Some(written) => written.to_owned(),
            None => identity::derive_uid(node_name, source, names, immutable).to_string(),
        };
        if !is_stored {
            forget_another_life(&mut pod.metadata);
        }
        default::default(&mut pod);
        identity::set_node_fields(&mut pod, names, &uid, source, node_name);
        Self {
            fingerprint: match is_stored {
                true => fingerprint::hash(&fingerprint::canonical(version)),
                false => fingerprint::hash(&manifest),
            },
            immutable_fingerprint: immutable,
            namespace,
            name,
            uid,
            pod,
            manifest,
            source,
            origin,
        }
    }

    /// The pod's spec; an empty one if it has none.
    pub(crate) fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// Makes the record.
    ///
    /// # Errors
    ///
    /// The names that are not valid.
    pub(crate) fn record(self) -> Result<PodRecord, Vec<Fault>> {
        let mut faults = FaultList::default();
        let key = PodKey::parse(self.namespace.as_str(), self.name.as_str());
        let key = key.map_err(|error| match error {
            NameError::Namespace => faults.push(fault("metadata.namespace", &self.namespace, error)),
            _ => faults.push(fault("metadata.name", &self.name, error)),
        });
        let uid = PodUid::parse(self.uid.as_str());
        let uid = uid.map_err(|error| faults.push(fault("metadata.uid", &self.uid, error)));
        let spec = self.spec();
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(as_container).collect();
        let (qos_class, cgroup_limits) = (qos_class(spec), pod_limits(spec));
        self.check_parts(&mut faults);
        match (key, uid) {
            (Ok(key), Ok(uid)) if faults.errors() == 0 => Ok(PodRecord {
                key,
                uid,
                fingerprint: self.fingerprint,
                immutable_fingerprint: self.immutable_fingerprint,
                source: self.source,
                origin: self.origin,
                manifest: Arc::from(self.manifest),
                ephemeral,
                qos_class,
                cgroup_limits,
                pod: self.pod,
            }),
            _ => Err(faults.finish()),
        }
    }

    /// Checks the names of containers and volumes.
    fn check_parts(&self, faults: &mut FaultList) {
        let spec = self.spec();
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| container.name.as_str());
        let containers = (spec.init_containers.iter().flatten().map(|container| container.name.as_str()).enumerate())
            .map(|name| ("initContainers", name))
            .chain(
                spec.containers
                    .iter()
                    .map(|container| container.name.as_str())
                    .enumerate()
                    .map(|name| ("containers", name)),
            )
            .chain(ephemeral.enumerate().map(|name| ("ephemeralContainers", name)));
        let containers = containers.map(|(list, (index, name))| (list, index, name, ContainerName::parse(name).err()));
        let volumes = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).enumerate();
        let volumes = volumes.map(|(index, name)| ("volumes", index, name, VolumeName::parse(name).err()));
        for (list, index, name, error) in containers.chain(volumes) {
            if let Some(error) = error {
                faults.push(fault(&format!("spec.{list}[{index}].name"), name, error));
            }
        }
    }
}

/// Removes what an apiserver sets for a pod and replaces when a pod is created. A manifest's pod is a new one, even
/// if the manifest was written by `kubectl get`.
fn forget_another_life(metadata: &mut ObjectMeta) {
    metadata.creation_timestamp = None;
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
}

/// `pod` as it was before its deletion was requested.
fn without_deletion(pod: &Value) -> Value {
    let mut before = pod.clone();
    if let Some(metadata) = before["metadata"].as_object_mut() {
        DELETION.iter().for_each(|field| drop(metadata.remove(*field)));
    }
    before
}

fn fault(path: &str, value: &str, error: NameError) -> Fault {
    Fault::error(path, format!("Invalid value: {value:?}: {error}"))
}
