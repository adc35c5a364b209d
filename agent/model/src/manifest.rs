//! Decodes a file, an HTTP response or a push into pods, objects and faults.

pub mod api;
mod other_kinds;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;

use crate::object::{self, ObjectKey, ObjectKind, ObjectRecord, local_claim, local_service, workload};
use crate::pod::accept::{self, accept};
use crate::pod::security::{self, SecurityLevel};
use crate::pod::yaml::{self, Document};
use crate::pod::{Fault, FaultList, FieldValidation, PodKey, PodRecord, encoding, identity};
use crate::source::SourceKind;
use other_kinds::{OtherKind, WithoutEffect};

/// The contents of one file, one HTTP response or one push.
#[derive(Debug, Default)]
pub struct Manifest {
    pub pods: Vec<Arc<PodRecord>>,
    pub objects: Vec<Arc<ObjectRecord>>,
    /// The faults, in the order of the text; at most [`MAX_FAULTS`](crate::pod::fault::MAX_FAULTS) errors and as many
    /// warnings, and how many more there are. If one is an error, something was rejected.
    pub faults: Vec<Fault>,
    /// The rejected pods that can be identified, so that their last good versions stay.
    pub refused: BTreeSet<PodKey>,
    /// The same for objects.
    pub refused_objects: BTreeSet<ObjectKey>,
    /// Those of `objects` whose documents name no namespace.
    pub unplaced: BTreeSet<ObjectKey>,
    /// Whether a document was rejected that may be any pod.
    pub unknown_pod_refused: bool,
    /// The same for objects.
    pub unknown_object_refused: bool,
    /// How many of the accepted objects a node does not act on.
    pub left_out: usize,
}

impl Manifest {
    /// A manifest that could not be read at all.
    pub fn broken(fault: Fault) -> Self {
        Self { faults: vec![fault], unknown_pod_refused: true, unknown_object_refused: true, ..Self::default() }
    }

    /// Refuses the pods, and the workloads of pods, of `source` that require more than `level` allows.
    pub fn enforce(&mut self, level: SecurityLevel, source: SourceKind) {
        let mut faults = FaultList::default();
        let refused = &mut self.refused;
        self.pods.retain(|pod| match security::check(pod, level) {
            None => true,
            Some(fault) => {
                faults.push(Fault { origin: Arc::clone(&pod.origin), ..fault });
                refused.insert(pod.key.clone());
                false
            }
        });
        let refused = &mut self.refused_objects;
        self.objects.retain(|object| {
            let sample =
                object.workload.as_ref().and_then(|workload| workload.sample(&object.key, &object.origin, source));
            let Some(fault) = sample.and_then(|pod| security::check(&pod, level)) else { return true };
            let path = format!("{}.{}", workload::template_path(object.key.kind), fault.path);
            faults.push(Fault { origin: Arc::clone(&object.origin), path, ..fault });
            refused.insert(object.key.clone());
            false
        });
        self.faults.extend(faults.finish());
    }

    /// Records every pod and object that a rejected item may be.
    fn refuse(&mut self, item: &Item<'_>, node_name: &str) {
        let (pod, kinds) = item.candidates();
        match item.name() {
            Some((namespace, name)) => {
                self.refused.extend(pod.then(|| identity::key(namespace, name, node_name).ok()).flatten());
                let namespace = namespace.unwrap_or("default");
                self.refused_objects.extend(kinds.iter().map(|kind| ObjectKey::new(*kind, namespace, name)));
            }
            None => {
                self.unknown_pod_refused |= pod;
                self.unknown_object_refused |= !kinds.is_empty();
            }
        }
    }

    fn take_pod(
        &mut self,
        item: &Item<'_>,
        origin: &Arc<str>,
        (source, validation): (SourceKind, FieldValidation),
        node_name: &str,
        keys: &mut BTreeSet<PodKey>,
    ) -> FaultList {
        let (pod, mut faults) = item.pod(origin, (source, validation), node_name);
        if pod.is_none() {
            self.refuse(item, node_name);
        }
        let pod = pod.filter(|pod| first("pod ", &pod.key, keys, &mut faults));
        self.pods.extend(pod.map(Arc::new));
        faults
    }

    fn take_object(
        &mut self,
        item: &Item<'_>,
        kind: ObjectKind,
        origin: &Arc<str>,
        (source, validation): (SourceKind, FieldValidation),
        node_name: &str,
        keys: &mut BTreeSet<ObjectKey>,
    ) -> FaultList {
        let (object, mut faults) = match kind {
            ObjectKind::PersistentVolumeClaim => {
                let (claim, faults) = local_claim::read(item.value, validation);
                (claim.map(|claim| ObjectRecord::of_claim(claim, origin)), faults)
            }
            ObjectKind::Service => {
                let (service, faults) = local_service::read(item.value, validation);
                (service.map(|service| ObjectRecord::of_service(service, origin)), faults)
            }
            kind if kind.is_workload() => {
                let (workload, faults) = workload::read(item.value, kind, origin, (source, validation));
                (workload.map(|workload| ObjectRecord::of_workload(workload, origin)), faults)
            }
            _ => object::read(item.value, kind, Arc::clone(origin), validation),
        };
        faults.extend(item.duplicates());
        faults.relax(validation);
        let object = object.filter(|_| faults.errors() == 0);
        if object.is_none() {
            self.refuse(item, node_name);
        }
        let object = object.filter(|object| first("", &object.key, keys, &mut faults));
        if let Some(object) = object.as_ref().filter(|_| item.name().is_some_and(|(namespace, _)| namespace.is_none()))
        {
            self.unplaced.insert(object.key.clone());
        }
        self.objects.extend(object.map(Arc::new));
        faults
    }
}

/// Reads a manifest as authored: every document, and every item of a list.
///
/// `origin` is the file's name or the URL; `node_name` is part of the pods' names and UIDs.
pub fn read(text: &[u8], origin: &str, source: SourceKind, node_name: &str) -> Manifest {
    read_by(FieldValidation::Strict, text, origin, source, node_name)
}

/// The same with [`FieldValidation::Warn`].
pub fn read_leniently(text: &[u8], origin: &str, source: SourceKind, node_name: &str) -> Manifest {
    read_by(FieldValidation::Warn, text, origin, source, node_name)
}

fn read_by(validation: FieldValidation, text: &[u8], origin: &str, source: SourceKind, node_name: &str) -> Manifest {
    let mut manifest = Manifest::default();
    let origin: Arc<str> = Arc::from(origin);
    let text = encoding::utf8(text);
    let (documents, faults) = yaml::documents(&text);
    let unread = !faults.is_empty();
    let mut all = FaultList::default();
    all.extend(faults);
    let (mut keys, mut objects) = (BTreeSet::new(), BTreeSet::new());
    // A duplicate key of a list itself makes it unclear which items are meant.
    let (unclear, documents): (Vec<_>, Vec<_>) = documents.into_iter().partition(|document| outer(document).is_some());
    manifest.unknown_pod_refused = unread || !unclear.is_empty();
    manifest.unknown_object_refused = manifest.unknown_pod_refused;
    all.extend(unclear.iter().filter_map(outer).cloned());
    let mut without_effect = WithoutEffect::default();
    for item in documents.iter().flat_map(items) {
        match other_kinds::classify(item.value) {
            Some(OtherKind::Accepted) => {
                manifest.left_out += 1;
                continue;
            }
            Some(OtherKind::NoEffect(kind)) => {
                manifest.left_out += 1;
                without_effect.add(kind, |fault| item.locate(fault));
                continue;
            }
            Some(OtherKind::Refused(mut fault)) => {
                item.locate(&mut fault);
                all.push(fault);
                continue;
            }
            None => {}
        }
        let mut faults = match item.object_kind() {
            Some(kind) => manifest.take_object(&item, kind, &origin, (source, validation), node_name, &mut objects),
            None => manifest.take_pod(&item, &origin, (source, validation), node_name, &mut keys),
        };
        faults.kept_mut().iter_mut().for_each(|fault| item.locate(fault));
        all.absorb(faults);
    }
    all.extend(without_effect.finish());
    all.kept_mut().iter_mut().for_each(|fault| fault.origin = Arc::clone(&origin));
    manifest.faults = all.finish();
    manifest
}

/// Whether `key` occurs for the first time; adds a fault if not.
fn first<K: Ord + Clone + Display>(what: &str, key: &K, known: &mut BTreeSet<K>, faults: &mut FaultList) -> bool {
    let new = known.insert(key.clone());
    if !new {
        let message = format!("{what}{key} is defined twice in this file; the first one counts");
        faults.push(Fault::error("metadata.name", message));
    }
    new
}

/// Decodes a pod from a manifest that was accepted before and stored by limpet. It is not validated again, because a
/// limpet version with stricter validation must not stop running pods. Only its names are checked, since they become
/// paths.
///
/// # Errors
///
/// The bytes are not a Pod, or one of its names is not valid.
pub fn restore(manifest: &[u8], origin: &str, source: SourceKind, node_name: &str) -> Result<PodRecord, Vec<Fault>> {
    let value: Value = serde_json::from_slice(manifest)
        .map_err(|error| vec![Fault::error("", format!("stored manifest: {error}"))])?;
    accept::restore(&value, origin, source, node_name)
}

/// A manifest that was accepted before and stored by limpet.
#[derive(Debug)]
pub enum Restored {
    Pod(Box<PodRecord>),
    Object(ObjectRecord),
}

/// Decodes a pod or an object from a manifest that was accepted before, as [`restore`] does.
///
/// # Errors
/// The bytes are neither.
pub fn restore_last_good(
    manifest: &[u8],
    origin: &str,
    source: SourceKind,
    node_name: &str,
) -> Result<Restored, Vec<Fault>> {
    let value: Value = serde_json::from_slice(manifest)
        .map_err(|error| vec![Fault::error("", format!("stored manifest: {error}"))])?;
    match object::restore(&value, origin) {
        Some(object) => object.map(Restored::Object),
        None => restore(manifest, origin, source, node_name).map(Box::new).map(Restored::Pod),
    }
}

/// One object of a document, and its path there.
struct Item<'a> {
    document: &'a Document<'a>,
    value: &'a Value,
    /// `items[3]` for an item of a list, empty for a document.
    path: String,
}

fn is_list(document: &Document<'_>) -> bool {
    let kinds = ["List", "PodList", "ConfigMapList", "SecretList"];
    document.value["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
}

/// A duplicate key in a list itself and not in one of its items.
fn outer<'d>(document: &'d Document<'_>) -> Option<&'d Fault> {
    document.duplicates.iter().find(|fault| is_list(document) && !fault.path.starts_with("items["))
}

/// The objects of a document: itself, or the items of a list.
fn items<'d>(document: &'d Document<'d>) -> Vec<Item<'d>> {
    let value = &document.value;
    match value["items"].as_array() {
        Some(items) if is_list(document) => items
            .iter()
            .enumerate()
            .map(|(index, value)| Item { document, value, path: format!("items[{index}]") })
            .collect(),
        _ => vec![Item { document, value, path: String::new() }],
    }
}

impl Item<'_> {
    /// The kind of a local object; `None` for everything else.
    fn object_kind(&self) -> Option<ObjectKind> {
        let kind = ObjectKind::from_name(self.value["kind"].as_str()?)?;
        (self.value["apiVersion"] == kind.api_version()).then_some(kind)
    }

    /// The item's namespace and name; `None` if it has no usable name.
    fn name(&self) -> Option<(Option<&str>, &str)> {
        let metadata = &self.value["metadata"];
        let name = metadata["name"].as_str().filter(|name| !name.is_empty())?;
        match &metadata["namespace"] {
            Value::Null => Some((None, name)),
            Value::String(namespace) => Some((Some(&**namespace).filter(|namespace| !namespace.is_empty()), name)),
            _ => None,
        }
    }

    /// What a rejected item may be: a pod, an object of these kinds.
    fn candidates(&self) -> (bool, &'static [ObjectKind]) {
        match self.value["kind"].as_str() {
            Some("Pod") => (true, &[]),
            Some(kind) => match ObjectKind::LOCAL.iter().position(|local| local.as_str() == kind) {
                Some(at) => (false, &ObjectKind::LOCAL[at..=at]),
                None => (true, &ObjectKind::LOCAL),
            },
            None => (true, &ObjectKind::LOCAL),
        }
    }

    /// The pod, unless it has an error, and its faults.
    fn pod(
        &self,
        origin: &Arc<str>,
        (source, validation): (SourceKind, FieldValidation),
        node_name: &str,
    ) -> (Option<PodRecord>, FaultList) {
        if let Some(fault) = self.kind_fault() {
            let mut faults = FaultList::default();
            faults.push(fault);
            return (None, faults);
        }
        accept(self.value, self.duplicates(), origin, (source, validation), node_name)
    }

    /// Duplicate keys within this item.
    fn duplicates(&self) -> impl Iterator<Item = Fault> {
        let within = |fault: &&Fault| {
            let rest = fault.path.strip_prefix(self.path.as_str());
            self.path.is_empty() || rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let duplicates = self.document.duplicates.iter().filter(within).cloned();
        duplicates
            .map(|fault| Fault { path: fault.path[self.path.len()..].trim_start_matches('.').to_owned(), ..fault })
    }

    /// The fault of everything that is not a v1 Pod.
    fn kind_fault(&self) -> Option<Fault> {
        let text = |key: &str| self.value[key].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        if let Some(local) = ObjectKind::from_name(kind) {
            let message = if version.is_empty() { "required".to_owned() } else { format!("{version} has no {kind}") };
            let remedy = format!("apiVersion: {}", local.api_version());
            return Some(Fault::error("apiVersion", message).with_remedy(remedy));
        }
        match (version, kind) {
            ("v1", "Pod") => None,
            ("", "") => Some(
                Fault::error("", "is not a Kubernetes object: apiVersion and kind are missing")
                    .with_remedy("start it with apiVersion: v1 and kind: Pod"),
            ),
            ("v1", "") => Some(Fault::error("kind", "required").with_remedy("kind: Pod")),
            ("", "Pod") => Some(Fault::error("apiVersion", "required").with_remedy("apiVersion: v1")),
            (_, "Pod") => Some(Fault::error("apiVersion", format!("{version} has no Pod; it must be v1"))),
            _ => Some(
                Fault::error("kind", format!("{kind} is not accepted: a node runs Pods"))
                    .with_remedy("write its pod template as a Pod of its own"),
            ),
        }
    }

    /// Gives the fault its position in the file and its full path, including that of the list item.
    fn locate(&self, fault: &mut Fault) {
        let path = match (self.path.is_empty(), fault.path.is_empty()) {
            (true, _) => fault.path.clone(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{}", self.path, fault.path),
        };
        fault.position = fault.position.or_else(|| self.document.position(&path)).or(self.document.position(""));
        fault.path = path;
    }
}

#[cfg(test)]
mod tests;
