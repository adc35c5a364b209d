//! From a decoded document to a pod, of a manifest as authored or of one that was accepted before.

use std::sync::Arc;

use serde_json::Value;

use crate::pod::draft::Draft;
use crate::pod::identity::{OWNER_ANNOTATION, has_owner};
use crate::pod::{Fault, FaultList, FieldValidation, PodRecord, decode, size, unsupported, validate};
use crate::source::SourceKind;

/// The pod of a manifest as authored, unless it has an error, and its faults, including `duplicates`.
pub(crate) fn accept(
    value: &Value,
    duplicates: impl IntoIterator<Item = Fault>,
    origin: &Arc<str>,
    (source, validation): (SourceKind, FieldValidation),
    node_name: &str,
) -> (Option<PodRecord>, FaultList) {
    let (decoded, mut faults) = decode::decode_with_value(value);
    faults.extend(duplicates);
    faults.relax(validation);
    let Some((pod, value)) = decoded else { return (None, faults) };
    let draft = Draft::new(&value, pod, Arc::clone(origin), source, node_name);
    // A field of the wrong type was removed, and faults that follow from its absence would only confuse.
    if faults.errors() == 0 {
        faults.absorb(validate::validate(&draft));
    }
    if !value["metadata"]["deletionTimestamp"].is_null() {
        let warning = "has no effect: the pod of a manifest is a new one";
        faults.push(Fault::warning("metadata.deletionTimestamp", warning).with_remedy("remove it"));
    }
    if !source.traits().is_stored && has_owner(&value) {
        let message = format!("{OWNER_ANNOTATION} marks a pod that limpet made of a workload");
        faults.push(Fault::error("metadata.annotations", message).with_remedy("remove the annotation"));
    }
    faults.extend(size::check(&value, draft.manifest.len()));
    faults.extend(unsupported::check(&value, source));
    if faults.errors() > 0 {
        return (None, faults);
    }
    let record = draft.record().map_err(|refused| faults.extend(refused));
    (record.ok(), faults)
}

/// A pod from a manifest that was accepted before, or that a controller made from one. It is not validated again;
/// only its names are checked.
///
/// # Errors
///
/// It is not a Pod, or one of its names is not valid.
pub(crate) fn restore(
    value: &Value,
    origin: &str,
    source: SourceKind,
    node_name: &str,
) -> Result<PodRecord, Vec<Fault>> {
    let (decoded, faults) = decode::decode_with_value(value);
    match decoded {
        Some((pod, value)) => Draft::new(&value, pod, Arc::from(origin), source, node_name).record(),
        None => Err(faults.finish()),
    }
}
