//! Decodes a document into a workload, as strictly as an apiserver.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Workload;
use super::rules::{self, Authored};
use super::template::PodTemplate;
use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::metadata::{key, metadata};
use crate::pod::{Fault, FaultList, FieldValidation, Reason, Severity, accept, fingerprint, strict};
use crate::source::SourceKind;

/// Where a workload has the template of its pods.
pub(crate) const TEMPLATE: &str = "spec.template";

/// Decodes a workload of a manifest: with its key, unless it has an error, and its faults.
pub(crate) fn read(
    value: &Value,
    kind: ObjectKind,
    origin: &Arc<str>,
    (source, validation): (SourceKind, FieldValidation),
) -> (Option<(ObjectKey, Workload)>, FaultList) {
    let mut faults = FaultList::default();
    let Some(document) = value.as_object() else {
        faults.push(Fault::error("", "must be a map"));
        return (None, faults);
    };
    let metadata = metadata(document, &mut faults);
    let key = key(metadata, kind, &mut faults);
    let (frame, template) = split(value);
    let spec = spec(kind, &frame, &mut faults);
    faults.relax(validation);
    match &template {
        Some(value) => {
            let template = PodTemplate::new(value);
            faults.absorb(of_template(value, &template, &key, origin, (source, validation)));
            if let Some(spec) = &spec {
                faults.extend(rules::check(spec, &template, TEMPLATE));
            }
        }
        None => faults.push(Fault::error(TEMPLATE, "required").with_remedy("what its pods are made of")),
    }
    if faults.errors() > 0 {
        return (None, faults);
    }
    (spec.zip(template).map(|(spec, template)| settled(value, key, spec, &template)), faults)
}

/// Decodes a workload that was accepted before and stored by limpet. It is not validated again.
///
/// # Errors
/// It is none.
pub(crate) fn restore(value: &Value, kind: ObjectKind) -> Result<(ObjectKey, Workload), Vec<Fault>> {
    let mut faults = FaultList::default();
    let metadata = metadata(value.as_object().unwrap_or(&Map::new()), &mut FaultList::default());
    let key = key(metadata, kind, &mut faults);
    let (frame, template) = split(value);
    // A field that is not known any more has no effect.
    let spec = spec(kind, &frame, &mut FaultList::default());
    match spec.zip(template).filter(|_| faults.errors() == 0) {
        Some((spec, template)) => Ok(settled(value, key, spec, &template)),
        None => {
            faults.push(Fault::error("", format!("stored {}: damaged", kind.resource())));
            Err(faults.finish())
        }
    }
}

fn settled(value: &Value, key: ObjectKey, spec: Authored, template: &Value) -> (ObjectKey, Workload) {
    let mut document = value.clone();
    document["metadata"]["namespace"] = Value::from(&*key.namespace);
    let manifest = Arc::from(fingerprint::canonical(&document));
    (key, Workload { manifest, spec: rules::settle(spec), template: PodTemplate::new(template) })
}

/// The document without its template, and the template.
fn split(value: &Value) -> (Value, Option<Value>) {
    let mut frame = value.clone();
    if let Some(document) = frame.as_object_mut() {
        document.remove("status");
    }
    let template = frame["spec"].as_object_mut().and_then(|spec| spec.remove("template"));
    (frame, template.filter(Value::is_object))
}

/// What the document says beside its template; `None`: it has an error.
fn spec(kind: ObjectKind, frame: &Value, faults: &mut FaultList) -> Option<Authored> {
    match kind {
        ObjectKind::Deployment => typed::<Deployment>(frame, faults).map(|one| Authored::Deployment(one.spec)),
        ObjectKind::ReplicaSet => typed::<ReplicaSet>(frame, faults).map(|one| Authored::ReplicaSet(one.spec)),
        ObjectKind::DaemonSet => typed::<DaemonSet>(frame, faults).map(|one| Authored::DaemonSet(one.spec)),
        _ => None,
    }
}

fn typed<T: for<'a> Deserialize<'a>>(frame: &Value, faults: &mut FaultList) -> Option<T> {
    let (read, unknown) = strict::read::<T>(frame);
    // Those of the metadata were found before.
    let unknown_fields = unknown.first.into_iter().filter(|field| !field.path.starts_with("metadata."));
    faults.extend(unknown_fields.map(|field| {
        let suggestion = field.suggestion().unwrap_or_default();
        Fault::error(field.path, "no such field").with_remedy(suggestion).because(Reason::Strict)
    }));
    faults.leave_out(Severity::Error, unknown.more);
    read.map_err(|error| faults.push(Fault::error(error.path.clone(), "has the wrong type"))).ok()
}

/// The faults of the template, at their places in the document.
fn of_template(
    value: &Value,
    template: &PodTemplate,
    key: &ObjectKey,
    origin: &Arc<str>,
    of: (SourceKind, FieldValidation),
) -> FaultList {
    let mut pod = template.sample(key);
    // Strictness is about the template as it is written.
    for field in ["metadata", "spec"] {
        if !value[field].is_object() && !value[field].is_null() {
            pod[field] = value[field].clone();
        }
    }
    let (_, mut faults) = accept::accept(&pod, [], origin, of, "node");
    for fault in faults.kept_mut() {
        let own = ["metadata.name", "metadata.namespace", "metadata.uid"].iter().any(|path| fault.path == *path);
        if !own {
            fault.path = match fault.path.as_str() {
                "" => TEMPLATE.to_owned(),
                path => format!("{TEMPLATE}.{path}"),
            };
        }
    }
    let known = ["metadata", "spec"];
    let unknown = value.as_object().into_iter().flat_map(Map::keys).filter(|field| !known.contains(&field.as_str()));
    let mut unknown_fields = FaultList::default();
    unknown_fields.extend(unknown.map(|field| {
        Fault::error(format!("{TEMPLATE}.{field}"), "no such field")
            .with_remedy("a template has metadata and spec")
            .because(Reason::Strict)
    }));
    unknown_fields.relax(of.1);
    faults.absorb(unknown_fields);
    faults
}
