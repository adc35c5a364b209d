//! Validation of claims: of an ephemeral volume's template, and of a PersistentVolumeClaim.

use k8s_openapi::api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::name::is_dns_label;
use crate::pod::validate::field::{At, Faults, text};
use crate::pod::validate::{metadata, resources, selector};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const SINGLE_POD_MODE: &str = "ReadWriteOncePod";

pub(super) fn ephemeral(at: &At<'_>, source: &EphemeralVolumeSource, faults: &mut Faults) {
    let at = at.field("volumeClaimTemplate");
    let Some(template) = &source.volume_claim_template else { return faults.required(&at, "") };
    if let Some(metadata) = &template.metadata {
        let at = at.field("metadata");
        metadata::labels_and_annotations(&at, metadata, faults);
        nothing_else(&at, metadata, faults);
    }
    claim_spec(&at.field("spec"), &template.spec, faults);
}

/// A template's metadata may have only labels and annotations.
fn nothing_else(at: &At<'_>, metadata: &ObjectMeta, faults: &mut Faults) {
    for (field, set) in [
        ("name", metadata.name.is_some()),
        ("generateName", metadata.generate_name.is_some()),
        ("namespace", metadata.namespace.is_some()),
        ("uid", metadata.uid.is_some()),
        ("resourceVersion", metadata.resource_version.is_some()),
        ("generation", metadata.generation.is_some()),
        ("creationTimestamp", metadata.creation_timestamp.is_some()),
        ("deletionTimestamp", metadata.deletion_timestamp.is_some()),
        ("deletionGracePeriodSeconds", metadata.deletion_grace_period_seconds.is_some()),
        ("ownerReferences", metadata.owner_references.is_some()),
        ("finalizers", metadata.finalizers.is_some()),
        ("managedFields", metadata.managed_fields.is_some()),
    ] {
        if set {
            faults.forbidden(&at.field(field), "cannot be set");
        }
    }
}

/// Validates the spec of a claim.
pub(in crate::pod::validate) fn claim_spec(at: &At<'_>, spec: &PersistentVolumeClaimSpec, faults: &mut Faults) {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let at_modes = at.field("accessModes");
    if modes.is_empty() {
        faults.required(&at_modes, "at least 1 access mode is required");
    }
    modes.iter().for_each(|mode| faults.if_set_one_of(&at_modes, Some(mode), &ACCESS_MODES));
    let others = modes.iter().any(|mode| mode != SINGLE_POD_MODE && ACCESS_MODES.contains(&mode.as_str()));
    if others && modes.iter().any(|mode| mode == SINGLE_POD_MODE) {
        faults.forbidden(&at_modes, "may not use ReadWriteOncePod with other access modes");
    }
    selector::labels(&at.field("selector"), spec.selector.as_ref(), faults);
    storage(&at.field("resources").key("storage"), spec, faults);
    for (field, class) in [
        ("storageClassName", text(&spec.storage_class_name)),
        ("volumeAttributesClassName", text(&spec.volume_attributes_class_name)),
    ] {
        if !class.is_empty() {
            faults.dns_subdomain(&at.field(field), class);
        }
    }
    faults.if_set_one_of(&at.field("volumeMode"), spec.volume_mode.as_deref(), &["Block", "Filesystem"]);
    data_sources(at, spec, faults);
}

fn storage(at: &At<'_>, spec: &PersistentVolumeClaimSpec, faults: &mut Faults) {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let Some(value) = requests.and_then(|requests| requests.get("storage")) else { return faults.required(at, "") };
    let before = faults.error_count();
    let amount = resources::amount(at, "storage", value, faults);
    if faults.error_count() == before && amount.is_some_and(|amount| amount.is_zero()) {
        faults.invalid(at, &value.0, "must be greater than zero");
    }
}

fn data_sources(at: &At<'_>, spec: &PersistentVolumeClaimSpec, faults: &mut Faults) {
    let source = spec.data_source.as_ref().map(|source| (text(&source.api_group), &source.kind, &source.name));
    let reference = spec.data_source_ref.as_ref();
    let namespace = reference.map_or("", |reference| text(&reference.namespace));
    let reference = reference.map(|source| (text(&source.api_group), &source.kind, &source.name));
    for (field, source) in [("dataSource", source), ("dataSourceRef", reference)] {
        let Some((group, kind, name)) = source else { continue };
        let at = at.field(field);
        faults.not_empty(&at.field("name"), name);
        faults.not_empty(&at.field("kind"), kind);
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            faults.invalid(&at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
        }
        if !group.is_empty() {
            faults.dns_subdomain(&at.field("apiGroup"), group);
        }
    }
    if !namespace.is_empty() && !is_dns_label(namespace) {
        faults.dns_label(&at.field("dataSourceRef").field("namespace"), namespace);
    }
    match (source, reference) {
        (Some(_), Some(_)) if !namespace.is_empty() => {
            faults.invalid(at, "dataSource", "may not be specified when dataSourceRef.namespace is specified");
        }
        (Some(source), Some(reference)) if source != reference => {
            faults.invalid(at, "dataSource", "must match dataSourceRef");
        }
        _ => {}
    }
}

pub(super) fn persistent(at: &At<'_>, source: &PersistentVolumeClaimVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("claimName"), &source.claim_name);
}
