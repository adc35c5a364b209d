//! Decodes a document into a workload, as strictly as an apiserver.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Workload;
use super::authored::Authored;
use super::template::{PodTemplate, add_claims};
use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::metadata::{key, metadata};
use crate::pod::{Fault, FaultList, FieldValidation, Reason, accept, fingerprint};
use crate::source::SourceKind;

/// The fields that lead to the template of a workload's pods.
fn template_fields(kind: ObjectKind) -> &'static [&'static str] {
    match kind {
        ObjectKind::CronJob => &["spec", "jobTemplate", "spec", "template"],
        _ => &["spec", "template"],
    }
}

/// Where a workload of that kind has the template of its pods.
pub(crate) fn template_path(kind: ObjectKind) -> String {
    template_fields(kind).join(".")
}

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
    let (frame, template) = split(value, kind);
    let spec = Authored::read(kind, &frame, &mut faults);
    faults.relax(validation);
    match &template {
        Some(value) => {
            let template = PodTemplate::new(value);
            let mut sample = template.sample(&key);
            add_claims(&mut sample, &claim_volumes(&frame));
            faults.absorb(of_template(value, sample, key.kind, origin, (source, validation)));
            if let Some(spec) = &spec {
                faults.extend(spec.check(&key, &template, &template_path(kind)));
            }
        }
        None => faults.push(Fault::error(template_path(kind), "required").with_remedy("what its pods are made of")),
    }
    if faults.errors() > 0 {
        return (None, faults);
    }
    (spec.zip(template).and_then(|(spec, template)| settled(value, key, spec, &template)), faults)
}

/// Decodes a workload that was accepted before and stored by limpet. It is not validated again.
///
/// # Errors
///
/// It is not a workload.
pub(crate) fn restore(value: &Value, kind: ObjectKind) -> Result<(ObjectKey, Workload), Vec<Fault>> {
    let mut faults = FaultList::default();
    let metadata = metadata(value.as_object().unwrap_or(&Map::new()), &mut FaultList::default());
    let key = key(metadata, kind, &mut faults);
    let (frame, template) = split(value, kind);
    // A field that is no longer known has no effect.
    let spec = Authored::read(kind, &frame, &mut FaultList::default());
    let known = spec.zip(template).filter(|_| faults.errors() == 0);
    match known.and_then(|(spec, template)| settled(value, key, spec, &template)) {
        Some(workload) => Ok(workload),
        None => {
            faults.push(Fault::error("", format!("stored {}: damaged", kind.resource())));
            Err(faults.finish())
        }
    }
}

fn settled(value: &Value, key: ObjectKey, spec: Authored, template: &Value) -> Option<(ObjectKey, Workload)> {
    let mut document = value.clone();
    document["metadata"]["namespace"] = Value::from(&*key.namespace);
    let manifest = Arc::from(fingerprint::canonical(&document));
    let template = PodTemplate::new(template);
    let spec = spec.settle(&template)?;
    Some((key, Workload { manifest, spec, template }))
}

/// The document without its template, and the template.
fn split(value: &Value, kind: ObjectKind) -> (Value, Option<Value>) {
    let mut frame = value.clone();
    if let Some(document) = frame.as_object_mut() {
        document.remove("status");
    }
    let [parents @ .., last] = template_fields(kind) else { return (frame, None) };
    let parent = parents.iter().try_fold(&mut frame, |value, field| value.get_mut(*field));
    let template = parent.and_then(Value::as_object_mut).and_then(|parent| parent.remove(*last));
    (frame, template.filter(Value::is_object))
}

/// The volumes that a StatefulSet adds to its pods, each with the name of a claim.
fn claim_volumes(frame: &Value) -> Vec<(String, String)> {
    let templates = frame["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    let names = templates.filter_map(|template| template["metadata"]["name"].as_str());
    names.map(|name| (name.to_owned(), name.to_owned())).collect()
}

/// The faults of the template, of which `pod` is one, at their places in the document.
fn of_template(
    value: &Value,
    mut pod: Value,
    kind: ObjectKind,
    origin: &Arc<str>,
    source: (SourceKind, FieldValidation),
) -> FaultList {
    let root = template_path(kind);
    // The strict check applies to the template as it is written.
    for field in ["metadata", "spec"] {
        if !value[field].is_object() && !value[field].is_null() {
            pod[field] = value[field].clone();
        }
    }
    let (_, mut faults) = accept::accept(&pod, [], origin, source, "node");
    for fault in faults.kept_mut() {
        let is_of_name = ["metadata.name", "metadata.namespace", "metadata.uid"].iter().any(|path| fault.path == *path);
        if !is_of_name {
            fault.path = match fault.path.as_str() {
                "" => root.clone(),
                path => format!("{root}.{path}"),
            };
        }
    }
    let known = ["metadata", "spec"];
    let unknown = value.as_object().into_iter().flat_map(Map::keys).filter(|field| !known.contains(&field.as_str()));
    let mut unknown_fields = FaultList::default();
    unknown_fields.extend(unknown.map(|field| {
        Fault::error(format!("{root}.{field}"), "no such field")
            .with_remedy("a template has metadata and spec")
            .because(Reason::Strict)
    }));
    unknown_fields.relax(source.1);
    faults.absorb(unknown_fields);
    faults
}
