//! Validation of metadata: name, namespace, UID, labels, annotations, owners, finalizers, and annotations with a meaning
//! for Pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::pod::draft::Draft;
use crate::pod::name::{is_dns_label, is_dns_subdomain, is_qualified_name};
use crate::pod::validate::context::each_container;
use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::{APPARMOR_ANNOTATION as APPARMOR, PodUid};

/// Maximum size in bytes of all annotations of one object.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// Finalizers without a domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Validates a pod's metadata as set by the node.
pub(super) fn metadata(draft: &Draft, faults: &mut Faults) {
    let at = At::Root("metadata");
    let metadata = &draft.pod.metadata;
    name(&at.field("name"), &draft.name, faults);
    if !is_dns_label(&draft.namespace) {
        faults.dns_label(&at.field("namespace"), &draft.namespace);
    }
    if PodUid::parse(draft.uid.as_str()).is_err() {
        let remedy = "leave it out, or use a UUID";
        faults.malformed(&at.field("uid"), &draft.uid, "must be fit to name a directory", remedy);
    }
    labels_and_annotations(&at, metadata, faults);
    if metadata.generation.is_some_and(|generation| generation < 0) {
        faults.not_negative(&at.field("generation"), metadata.generation.unwrap_or(0));
    }
    if let Some(prefix) = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // The generated suffix follows, so a trailing dash is allowed. Kubernetes masks it before checking.
        let kept = prefix.strip_suffix('-').and_then(|rest| rest.char_indices().last().map(|(last, _)| &rest[..last]));
        let as_name = kept.map_or_else(|| prefix.to_owned(), |kept| format!("{kept}a"));
        if !is_dns_subdomain(&as_name) {
            faults.dns_subdomain(&at.field("generateName"), prefix);
        }
    }
    owners(&at.field("ownerReferences"), metadata.owner_references.as_deref().unwrap_or_default(), faults);
    for (index, finalizer) in items(&metadata.finalizers) {
        let (list, name) = (at.field("finalizers"), finalizer.as_str());
        faults.qualified_name(&list.index(index), name);
        if is_qualified_name(name) && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            faults.invalid(&list.index(index), name, detail);
        }
    }
    pod_annotations(&at.field("annotations"), metadata.annotations.as_ref(), draft.spec(), faults);
}

fn name(at: &At<'_>, name: &str, faults: &mut Faults) {
    if name.starts_with('-') {
        faults.required(at, "a Pod needs a name");
    } else if !is_dns_subdomain(name) {
        // The node's name is appended, so the author's part may be valid and the whole too long.
        faults.dns_subdomain(at, name);
    }
}

/// Validates the labels and annotations of an object or of a template.
pub(super) fn labels_and_annotations(at: &At<'_>, metadata: &ObjectMeta, faults: &mut Faults) {
    faults.labels(&at.field("labels"), metadata.labels.iter().flatten());
    annotations(&at.field("annotations"), metadata.annotations.as_ref(), faults);
}

pub(super) fn annotations(at: &At<'_>, annotations: Option<&BTreeMap<String, String>>, faults: &mut Faults) {
    let annotations = annotations.into_iter().flatten();
    for (key, _) in annotations.clone() {
        if !is_qualified_name(&key.to_lowercase()) {
            faults.qualified_name(&at.key(key), key);
        }
    }
    let bytes: usize = annotations.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATIONS {
        faults.too_long(at, MAX_ANNOTATIONS);
    }
}

fn owners(at: &At<'_>, owners: &[OwnerReference], faults: &mut Faults) {
    for (index, owner) in owners.iter().enumerate() {
        let at = at.index(index);
        let version = owner.api_version.rsplit('/').next().unwrap_or_default();
        if owner.api_version.is_empty() {
            faults.required(&at.field("apiVersion"), "must not be empty");
        } else if version.is_empty() || owner.api_version.matches('/').count() > 1 {
            faults.invalid(&at.field("apiVersion"), &owner.api_version, "must be <group>/<version> or <version>");
        }
        for (field, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                faults.required(&at.field(field), "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            faults.invalid(&at, &owner.kind, "/v1, Kind=Event is disallowed from being an owner");
        }
    }
    let controllers = owners.iter().filter(|owner| owner.controller == Some(true)).count();
    if controllers > 1 {
        faults.invalid(at, controllers, "Only one reference can have Controller set to true");
    }
}

/// Validates the annotations that Kubernetes reads from a Pod.
fn pod_annotations(at: &At<'_>, annotations: Option<&BTreeMap<String, String>>, spec: &PodSpec, faults: &mut Faults) {
    let containers: BTreeSet<String> = each_container(spec).map(|(_, _, container)| container.name.clone()).collect();
    for (key, value) in annotations.into_iter().flatten() {
        if key == DELETION_COST && !is_deletion_cost(value) {
            faults.invalid(&at.key(key), value, "must be a 32bit integer");
        }
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp_annotation(&at.key(key), value, faults);
        }
        if let Some(container) = key.strip_prefix(APPARMOR) {
            if !containers.contains(container) {
                faults.invalid(&at.key(key), container, "container not found");
            }
            let known = value.is_empty() || value == "runtime/default" || value == "unconfined";
            if !known && !value.starts_with("localhost/") {
                faults.invalid(&at.key(key), value, "invalid AppArmor profile name");
            }
        }
    }
    if let Some(annotations) = annotations {
        profiles_agree(annotations, spec, faults);
    }
}

/// Whether it is an integer in plain form: no plus sign, no leading zero.
fn is_deletion_cost(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let plain = value == "0" || digits.bytes().next().is_some_and(|first| (b'1'..=b'9').contains(&first));
    plain && value.parse::<i32>().is_ok()
}

fn seccomp_annotation(at: &At<'_>, value: &str, faults: &mut Faults) {
    match value.strip_prefix("localhost/") {
        Some(path) => faults.descending_path(at, path),
        None if matches!(value, "runtime/default" | "docker/default" | "unconfined") => {}
        None => faults.invalid(at, value, "must be a valid seccomp profile"),
    }
}

/// A profile in an annotation and one in the field must be the same.
fn profiles_agree(annotations: &BTreeMap<String, String>, spec: &PodSpec, faults: &mut Faults) {
    let root = At::Root("spec");
    let pod = spec.security_context.as_ref();
    let profile = pod.and_then(|context| context.seccomp_profile.as_ref());
    if let (Some(value), Some(profile)) = (annotations.get(SECCOMP_POD), profile) {
        let at = root.field("securityContext");
        agree(&at.field("seccompProfile"), value, &profile.type_, text(&profile.localhost_profile), "seccomp", faults);
    }
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    for (list, index, container) in each_container(spec) {
        let list = root.field(list);
        let item = list.index(index);
        let at = item.field("securityContext");
        let context = container.security_context.as_ref();
        let seccomp = context.and_then(|context| context.seccomp_profile.as_ref());
        let value = annotations.get(&format!("{SECCOMP_CONTAINER}{}", container.name));
        if let (Some(value), Some(profile)) = (value, seccomp) {
            let path = text(&profile.localhost_profile);
            agree(&at.field("seccompProfile"), value, &profile.type_, path, "seccomp", faults);
        }
        let apparmor = context.and_then(|context| context.app_armor_profile.as_ref());
        let apparmor = apparmor.or_else(|| pod.and_then(|context| context.app_armor_profile.as_ref()));
        let value = annotations.get(&format!("{APPARMOR}{}", container.name)).filter(|_| !windows);
        if let (Some(value), Some(profile)) = (value, apparmor) {
            let path = text(&profile.localhost_profile);
            agree(&at.field("appArmorProfile"), value, &profile.type_, path, "apparmor", faults);
        }
    }
}

fn agree(at: &At<'_>, value: &str, kind: &str, path: &str, what: &str, faults: &mut Faults) {
    let same_kind = match kind {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => value == "runtime/default" || (what == "seccomp" && value == "docker/default"),
        "Localhost" => value.starts_with("localhost/"),
        _ => true,
    };
    if !same_kind {
        faults.forbidden(&at.field("type"), &format!("{what} type in annotation and field must match"));
    } else if kind == "Localhost" && value.strip_prefix("localhost/") != Some(path) {
        faults.forbidden(&at.field("localhostProfile"), &format!("{what} profile in annotation and field must match"));
    }
}
