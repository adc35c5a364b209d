//! The template of a workload's pods, and the names and identities derived from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::labels::{
    INDEX, INDEX_FAILURES, INDEX_IGNORED_FAILURES, INDEX_VARIABLE, NAMES, POD_INDEX, POD_NAME, REVISION_HASH,
    TEMPLATE_HASH, UIDS,
};
use crate::object::key::ObjectKey;
use crate::pod::identity::OWNER_ANNOTATION;
use crate::pod::{Fault, PodRecord, PodUid, accept, fingerprint};
use crate::source::SourceKind;

/// The characters of generated names (`k8s.io/apimachinery/pkg/util/rand`): no vowels, so that no words appear.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// How many characters the hash of a template has.
const HASH_LENGTH: usize = 10;
/// How many characters end a pod's name.
const SUFFIX_LENGTH: usize = 5;
/// The longest name of a pod, which is also its host name.
const MAX_NAME: usize = 63;
/// A suffix as long as those of a Deployment's pods.
const SAMPLE_SUFFIX: &str = "bbbbbbbbbb-bbbbb";

/// The lists of containers whose environment has the completion index.
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];
/// The labels that controllers add.
const ADDED_LABELS: [&str; 9] =
    [TEMPLATE_HASH, REVISION_HASH, NAMES[0], NAMES[1], UIDS[0], UIDS[1], INDEX, POD_NAME, POD_INDEX];

/// The annotations that a Job's controller adds to a pod with an index.
const INDEX_ANNOTATIONS: [&str; 3] = [INDEX, INDEX_FAILURES, INDEX_IGNORED_FAILURES];

/// The name of the claim that a pod of a StatefulSet has as `volume`.
pub(super) fn claim_name(volume: &str, pod: &str) -> String {
    format!("{volume}-{pod}")
}

/// What a controller adds to its template for one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions {
    /// Labels by name.
    pub labels: BTreeMap<&'static str, String>,
    /// Annotations by name.
    pub annotations: BTreeMap<&'static str, String>,
    /// Its host name, in place of the template's.
    pub host_name: Option<String>,
    /// Its subdomain, in place of the template's.
    pub subdomain: Option<String>,
    /// Its UID, in place of one that derives from its fields.
    pub uid: Option<String>,
    /// Volumes that are claims: the name of each, and of its claim.
    pub claims: Vec<(String, String)>,
    /// Whether its containers get the completion index in their environment.
    pub index_variable: bool,
}

/// Labels, annotations and spec of a workload's pods, as authored.
#[derive(Debug, Clone, PartialEq)]
pub struct PodTemplate {
    /// `metadata.labels` as authored.
    pub labels: Map<String, Value>,
    /// `metadata.annotations` as authored.
    pub annotations: Map<String, Value>,
    /// `spec` as authored.
    pub spec: Value,
}

impl PodTemplate {
    /// Reads the template of a workload. As in Kubernetes, other metadata has no effect.
    pub fn new(value: &Value) -> Self {
        let map = |field: &str| value["metadata"][field].as_object().cloned().unwrap_or_default();
        Self { labels: map("labels"), annotations: map("annotations"), spec: value["spec"].clone() }
    }

    /// The template as JSON, readable by [`Self::new`].
    pub fn to_value(&self) -> Value {
        json!({"metadata": {"labels": self.labels, "annotations": self.annotations}, "spec": self.spec})
    }

    /// A hash that identifies the template as authored among those of one workload: ten letters and digits.
    pub fn hash(&self) -> String {
        letters(&Sha256::digest(fingerprint::canonical(&self.to_value())), HASH_LENGTH)
    }

    /// The restart policy; `Always` by default.
    pub(super) fn restart_policy(&self) -> &str {
        self.spec["restartPolicy"].as_str().unwrap_or("Always")
    }

    /// The names of its containers and init containers.
    pub(super) fn container_names(&self) -> BTreeSet<&str> {
        let all = CONTAINERS.iter().filter_map(|list| self.spec[list].as_array()).flatten();
        all.filter_map(|container| container["name"].as_str()).collect()
    }

    /// The label, if it is a text.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)?.as_str()
    }

    /// A pod without owner, whose name is as long as that of a real one.
    pub(super) fn sample(&self, key: &ObjectKey) -> Value {
        self.plain_pod(&key.namespace, &pod_name(&key.name, SAMPLE_SUFFIX))
    }

    /// A pod of that name without owner.
    fn plain_pod(&self, namespace: &str, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "spec": self.spec,
            "metadata": {
                "name": name, "namespace": namespace, "labels": self.labels, "annotations": self.annotations,
            },
        })
    }

    /// The pod of that name of the workload `owner`, with the labels and annotations that its controller adds, and
    /// with `controller`: apiVersion, kind and name of the object that Kubernetes' own pods name as theirs.
    ///
    /// # Errors
    ///
    /// The template does not make a valid pod, although it was checked when the workload was accepted.
    pub fn pod(
        &self,
        owner: &ObjectKey,
        name: &str,
        added: &Additions,
        controller: (&str, &str, &str),
        (origin, source, node_name): (&Arc<str>, SourceKind, &str),
    ) -> Result<PodRecord, Vec<Fault>> {
        let (version, kind, controller) = controller;
        let mut pod = self.plain_pod(&owner.namespace, name);
        added.apply(&mut pod);
        pod["metadata"]["annotations"][OWNER_ANNOTATION] =
            Value::from(format!("{}/{}", owner.kind.as_str(), owner.name));
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": version, "kind": kind, "name": controller, "controller": true, "blockOwnerDeletion": true,
            "uid": uid(node_name, source, kind, &owner.namespace, controller),
        }]);
        accept::restore(&pod, origin, source, node_name)
    }

    /// The template from which [`Self::pod`] made `record`.
    pub fn of_pod(record: &PodRecord) -> Option<Self> {
        let pod: Value = serde_json::from_slice(&record.manifest).ok()?;
        let mut template = Self::new(&pod);
        template.annotations.remove(OWNER_ANNOTATION)?;
        let is_indexed = template.labels.contains_key(INDEX);
        let is_of_set = template.labels.contains_key(POD_NAME);
        ADDED_LABELS.iter().for_each(|label| drop(template.labels.remove(*label)));
        if is_indexed {
            INDEX_ANNOTATIONS.iter().for_each(|annotation| drop(template.annotations.remove(*annotation)));
            template.forget_index();
        }
        if let (true, Some(spec)) = (is_of_set, template.spec.as_object_mut()) {
            spec.remove("hostname");
            spec.remove("subdomain");
            forget_claims(spec, record.key.name());
        }
        Some(template)
    }
}

impl PodTemplate {
    /// Removes what a pod has because of its completion index.
    fn forget_index(&mut self) {
        if let Some(spec) = self.spec.as_object_mut() {
            spec.remove("hostname");
        }
        let variable = index_variable();
        for list in CONTAINERS {
            for container in self.spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let Some(container) = container.as_object_mut() else { continue };
                let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) else { continue };
                variables.retain(|name| *name != variable);
                if variables.is_empty() {
                    container.remove("env");
                }
            }
        }
    }
}

impl Additions {
    /// Adds them to a pod.
    fn apply(&self, pod: &mut Value) {
        for (field, values) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            for (name, value) in values {
                pod["metadata"][field][*name] = Value::from(value.as_str());
            }
        }
        if let Some(host_name) = &self.host_name {
            pod["spec"]["hostname"] = Value::from(host_name.as_str());
        }
        if let Some(subdomain) = &self.subdomain {
            pod["spec"]["subdomain"] = Value::from(subdomain.as_str());
        }
        if let Some(uid) = &self.uid {
            pod["metadata"]["uid"] = Value::from(uid.as_str());
        }
        add_claims(pod, &self.claims);
        if self.index_variable {
            add_index_variable(&mut pod["spec"]);
        }
    }
}

/// Adds volumes that are claims to a pod, each with its name and that of its claim. As in Kubernetes they take the places of
/// volumes of the same names.
pub(super) fn add_claims(pod: &mut Value, claims: &[(String, String)]) {
    if claims.is_empty() {
        return;
    }
    let volumes = &mut pod["spec"]["volumes"];
    if !volumes.is_array() {
        *volumes = json!([]);
    }
    let Some(volumes) = volumes.as_array_mut() else { return };
    volumes.retain(|volume| !claims.iter().any(|(name, _)| volume["name"] == **name));
    let claim = |(name, claim): &(String, String)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
    volumes.extend(claims.iter().map(claim));
}

/// Removes what [`add_claims`] has added to the spec of that pod.
fn forget_claims(spec: &mut Map<String, Value>, pod: &str) {
    let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) else { return };
    let is_added = |volume: &Value| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
        volume["name"].as_str().is_some_and(|name| claim == Some(&claim_name(name, pod)))
    };
    volumes.retain(|volume| !is_added(volume));
    if volumes.is_empty() {
        spec.remove("volumes");
    }
}

/// The variable that tells a container the completion index of its pod.
fn index_variable() -> Value {
    json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{INDEX}']")}}})
}

fn add_index_variable(spec: &mut Value) {
    for list in CONTAINERS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let variables = &mut container["env"];
            match variables.as_array_mut() {
                Some(variables) if variables.iter().any(|entry| entry["name"] == INDEX_VARIABLE) => {}
                Some(variables) => variables.push(index_variable()),
                None => *variables = json!([index_variable()]),
            }
        }
    }
}

/// The UID of a workload, or of an object between it and its pods.
pub fn uid(node_name: &str, source: SourceKind, kind: &str, namespace: &str, name: &str) -> String {
    PodUid::of_digest(&digest(&["limpet object uid 1", node_name, source.as_str(), kind, namespace, name])[..16])
        .to_string()
}

/// The UID of a pod whose name others had before it. It differs with the template and each time the pod is made anew.
pub fn incarnation_uid(
    node_name: &str,
    source: SourceKind,
    (namespace, name): (&str, &str),
    hash: &str,
    serial: u64,
) -> String {
    let serial = serial.to_string();
    let parts = ["limpet pod incarnation 1", node_name, source.as_str(), namespace, name, hash, &serial];
    PodUid::of_digest(&digest(&parts)[..16]).to_string()
}

/// A pod's name: `base` and `suffix`, with the base cut so that the name is a valid host name.
pub fn pod_name(base: &str, suffix: &str) -> String {
    let length = base.len().min(MAX_NAME.saturating_sub(suffix.len() + 1));
    // Before the dash, a name must not have the characters at which the cut may end.
    let base = base.get(..length).unwrap_or(base).trim_end_matches(['.', '-']);
    format!("{base}-{suffix}")
}

/// Five characters that differ between nodes, owners and serial numbers.
pub fn suffix(node_name: &str, owner: &ObjectKey, hash: &str, serial: u64) -> String {
    let serial = serial.to_string();
    let (kind, parts) = (owner.kind.as_str(), [&*owner.namespace, &*owner.name, hash, &serial]);
    letters(&digest(&[&["limpet pod suffix 1", node_name, kind], &parts[..]].concat()), SUFFIX_LENGTH)
}

/// A hash in which each part is preceded by its length, so that different lists of parts never have the same input.
fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

fn letters(digest: &[u8], length: usize) -> String {
    digest.iter().take(length).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}
