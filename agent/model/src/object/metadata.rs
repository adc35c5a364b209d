//! The name and namespace of an object of a manifest, and the object as the type of its API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::object::{ObjectKey, ObjectKind};
use crate::pod::{Fault, FaultList, Reason, Severity, is_dns_label, is_dns_subdomain, strict};

const DEFAULT_NAMESPACE: &str = "default";
/// The annotation of a Secret that the agent returns, with the names of its keys in place of its data.
pub const KEYS_ANNOTATION: &str = "limpet.dev/keys";

/// The key, with the faults of its parts and of metadata without effect.
pub(super) fn key(metadata: ObjectMeta, kind: ObjectKind, faults: &mut FaultList) -> ObjectKey {
    let name = metadata.name.unwrap_or_default();
    if name.is_empty() && metadata.generate_name.is_some() {
        faults.push(
            Fault::error("metadata.generateName", "only an apiserver generates names")
                .with_remedy("write metadata.name"),
        );
    } else if name.is_empty() {
        faults.push(Fault::error("metadata.name", "required"));
    } else if !is_dns_subdomain(&name) {
        faults.push(
            Fault::error("metadata.name", format!("{name:?} is not a valid name for a {}", kind.as_str()))
                .with_remedy("lower-case letters, digits, - and ., at most 253 characters"),
        );
    }
    let namespace = metadata.namespace.filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    if !is_dns_label(&namespace) {
        faults.push(Fault::error("metadata.namespace", format!("{namespace:?} is not a valid namespace")));
    }
    if metadata.annotations.is_some_and(|annotations| annotations.contains_key(KEYS_ANNOTATION)) {
        let message = format!("{KEYS_ANNOTATION} marks a Secret that limpet printed without its values");
        faults.push(
            Fault::error("metadata.annotations", message).with_remedy("add the values and remove the annotation"),
        );
    }
    for (path, used) in [
        ("metadata.finalizers", metadata.finalizers.is_some_and(|list| !list.is_empty())),
        ("metadata.ownerReferences", metadata.owner_references.is_some_and(|list| !list.is_empty())),
    ] {
        if used {
            faults.push(Fault::warning(path, "has no effect on a node without an apiserver"));
        }
    }
    ObjectKey::new(kind, namespace, name)
}

/// The metadata. An annotation may hold a copy of the object (`kubectl apply` adds one), so faults quote no value here
/// either.
pub(super) fn metadata(document: &Map<String, Value>, faults: &mut FaultList) -> ObjectMeta {
    let Some(value) = document.get("metadata").filter(|value| !value.is_null()) else { return ObjectMeta::default() };
    let (read, unknown) = strict::read(value);
    faults.extend(unknown.first.into_iter().map(|unknown| {
        let suggestion = unknown.suggestion().unwrap_or_default();
        Fault::error(format!("metadata.{}", unknown.path), "no such field")
            .with_remedy(suggestion)
            .because(Reason::Strict)
    }));
    faults.leave_out(Severity::Error, unknown.more);
    read.unwrap_or_else(|error| {
        let path = if error.path.is_empty() { "metadata".to_owned() } else { format!("metadata.{}", error.path) };
        faults.push(Fault::error(path, "has the wrong type"));
        ObjectMeta::default()
    })
}

/// The document as the API type of its kind; `None` if a value has the wrong type. [`metadata`] reports the faults of its
/// metadata.
pub(super) fn typed<T: for<'a> Deserialize<'a>>(document: &Value, faults: &mut FaultList) -> Option<T> {
    let (read, unknown) = strict::read::<T>(document);
    let unknown_fields = unknown.first.into_iter().filter(|field| !field.path.starts_with("metadata."));
    faults.extend(unknown_fields.map(|field| {
        let suggestion = field.suggestion().unwrap_or_default();
        Fault::error(field.path, "no such field").with_remedy(suggestion).because(Reason::Strict)
    }));
    faults.leave_out(Severity::Error, unknown.more);
    read.map_err(|error| faults.push(Fault::error(error.path.clone(), "has the wrong type"))).ok()
}
