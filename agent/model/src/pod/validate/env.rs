//! Validation of the environment: variables, the sources of their values, and `envFrom`.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector};

use crate::pod::name::is_qualified_name;
use crate::pod::quantity;
use crate::pod::validate::field::{At, Faults, items, text};

/// Fields of the pod that a variable may hold.
const OF_ENV: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields of the pod that a file may hold.
const OF_FILE: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const CPU_DIVISORS: [&str; 2] = ["1m", "1"];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Where a selected field is used. Not every field is available in both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldTarget {
    Env,
    File,
}

pub(super) fn variables(at: &At<'_>, container: &Container, faults: &mut Faults) {
    for (index, variable) in items(&container.env) {
        let at = at.index(index);
        match variable.name.as_str() {
            "" => faults.required(&at.field("name"), ""),
            name => faults.env_name(&at.field("name"), name),
        }
        if let Some(source) = &variable.value_from {
            value_from(&at.field("valueFrom"), variable, source, faults);
        }
    }
}

fn value_from(at: &At<'_>, variable: &EnvVar, source: &EnvVarSource, faults: &mut Faults) {
    let mut count = 0;
    if let Some(field) = &source.field_ref {
        count += 1;
        field_ref(&at.field("fieldRef"), field, FieldTarget::Env, faults);
    }
    if let Some(resource) = &source.resource_field_ref {
        count += 1;
        resource_ref(&at.field("resourceFieldRef"), resource, FieldTarget::Env, faults);
    }
    if let Some(key) = &source.config_map_key_ref {
        count += 1;
        key_ref(&at.field("configMapKeyRef"), &key.name, &key.key, faults);
    }
    if let Some(key) = &source.secret_key_ref {
        count += 1;
        key_ref(&at.field("secretKeyRef"), &key.name, &key.key, faults);
    }
    if let Some(key) = &source.file_key_ref {
        count += 1;
        let at = at.field("fileKeyRef");
        match key.key.as_str() {
            "" => faults.required(&at.field("key"), ""),
            name => faults.env_name(&at.field("key"), name),
        }
        faults.required_dns_label(&at.field("volumeName"), &key.volume_name);
        faults.not_empty(&at.field("path"), &key.path);
        faults.no_backsteps(&at.field("path"), &key.path);
    }
    if count == 0 {
        let kinds = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        faults.invalid(at, "", &format!("must specify one of: {kinds}"));
    } else if !text(&variable.value).is_empty() {
        faults.invalid(at, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        faults.invalid(at, "", "may not have more than one field specified at a time");
    }
}

fn key_ref(at: &At<'_>, name: &str, key: &str, faults: &mut Faults) {
    faults.dns_subdomain(&at.field("name"), name);
    faults.config_key(&at.field("key"), key);
}

/// A field of the pod itself.
pub(super) fn field_ref(at: &At<'_>, field: &ObjectFieldSelector, into: FieldTarget, faults: &mut Faults) {
    let path = field.field_path.as_str();
    let at_path = at.field("fieldPath");
    if path.is_empty() {
        return faults.required(&at_path, "");
    }
    if text(&field.api_version) != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {}", text(&field.api_version));
        return faults.invalid(&at_path, path, &detail);
    }
    let allowed: &[&str] = if into == FieldTarget::Env { &OF_ENV } else { &OF_FILE };
    match path.strip_suffix("']").and_then(|rest| rest.split_once("['")).filter(|(name, _)| !name.is_empty()) {
        Some(("metadata.labels", key)) => faults.qualified_name(at, key),
        Some(("metadata.annotations", key)) if is_qualified_name(&key.to_lowercase()) => {}
        Some(("metadata.annotations", key)) => faults.qualified_name(at, key),
        Some(_) => {
            let detail = format!("error converting fieldPath: field label does not support subscript: {path}");
            faults.invalid(&at_path, path, &detail);
        }
        // This is an old name of `spec.nodeName`.
        None if path == "spec.host" && into == FieldTarget::Env => {}
        None if allowed.contains(&path) => {}
        None => faults.unsupported(&at_path, path, allowed),
    }
}

/// A resource amount of a container.
pub(super) fn resource_ref(at: &At<'_>, field: &ResourceFieldSelector, into: FieldTarget, faults: &mut Faults) {
    let resource = field.resource.as_str();
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if into == FieldTarget::File && text(&field.container_name).is_empty() {
        faults.required(&at.field("containerName"), "");
    } else if resource.is_empty() {
        faults.required(&at.field("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge {
        faults.unsupported(&at.field("resource"), resource, &RESOURCES);
    }
    let Some(text) = field.divisor.as_ref().map(|divisor| divisor.0.as_str()) else { return };
    let divisor = match quantity::parse(text) {
        Ok(divisor) => divisor,
        Err(error) => return faults.malformed(&at.field("divisor"), text, &error.to_string(), "as in 1m, 1 or 1Mi"),
    };
    let allowed: &[&str] = match resource {
        "limits.cpu" | "requests.cpu" => &CPU_DIVISORS,
        _ if RESOURCES.contains(&resource) || huge => &BYTE_DIVISORS,
        _ => return,
    };
    if !divisor.is_zero() && !allowed.iter().any(|text| quantity::parse(text) == Ok(divisor)) {
        let detail = format!("only divisor's values {} are supported with this resource", allowed.join(", "));
        faults.invalid(&at.field("divisor"), resource, &detail);
    }
}

pub(super) fn sources(at: &At<'_>, container: &Container, faults: &mut Faults) {
    for (index, source) in items(&container.env_from) {
        let item = at.index(index);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            faults.env_name(&item.field("prefix"), prefix);
        }
        let map = source.config_map_ref.as_ref().map(|source| ("configMapRef", &source.name));
        let secret = source.secret_ref.as_ref().map(|source| ("secretRef", &source.name));
        for (field, name) in map.iter().chain(&secret) {
            faults.required_dns_subdomain(&item.field(field).field("name"), name);
        }
        match (map, secret) {
            (None, None) => faults.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"),
            (Some(_), Some(_)) => faults.invalid(at, "", "may not have more than one field specified at a time"),
            _ => {}
        }
    }
}
