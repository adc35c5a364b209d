//! A container's environment: the image's, the runtime's own variables, the Pod's.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector};

use super::host::HostInput;
use super::qos::{all_containers, limit, request};
use super::{SpecError, SpecInput, expansion};
use crate::pod::quantity::{Amount, parse};

/// What containerd gives a container whose image names no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables in order; setting one again changes it in its place.
#[derive(Debug, Default)]
pub(super) struct Variables(Vec<(String, String)>);

impl Variables {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, current)) => *current = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

/// The Pod's own variables: what references in the command may name.
///
/// # Errors
/// When a variable takes its value from a place that is not there.
pub(super) fn pod_variables(input: &SpecInput<'_>, host: &HostInput) -> Result<Variables, SpecError> {
    let mut variables = Variables::default();
    for source in input.container.env_from.iter().flatten() {
        let (kind, name, optional) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), _) => ("configmap", &map.name, map.optional),
            (None, Some(secret)) => ("secret", &secret.name, secret.optional),
            (None, None) => continue,
        };
        if optional != Some(true) {
            return Err(SpecError::Source { variable: "envFrom".to_owned(), kind, name: name.clone() });
        }
    }
    for variable in input.container.env.iter().flatten() {
        if let Some(value) = value_of(variable, &variables, input, host)? {
            variables.set(&variable.name, value);
        }
    }
    Ok(variables)
}

/// `process.env`: what the runtime sets, then the image, then the Pod; the later wins.
pub(super) fn environment(input: &SpecInput<'_>, pod: &Variables) -> Vec<String> {
    let mut all = Variables::default();
    all.set("PATH", DEFAULT_PATH.to_owned());
    if input.container.tty == Some(true) {
        all.set("TERM", "xterm".to_owned());
    }
    all.set("HOSTNAME", input.sandbox.hostname.clone());
    let image = input.image.config.config().as_ref().and_then(|config| config.env().as_ref());
    for entry in image.into_iter().flatten() {
        let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
        all.set(name, value.to_owned());
    }
    for (name, value) in &pod.0 {
        all.set(name, value.clone());
    }
    if all.get("HOME").is_none() && !input.user.home.is_empty() {
        all.set("HOME", input.user.home.clone());
    }
    all.0.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A variable's value; `None` when it comes from something optional that is absent.
fn value_of(
    variable: &EnvVar,
    before: &Variables,
    input: &SpecInput<'_>,
    host: &HostInput,
) -> Result<Option<String>, SpecError> {
    if let Some(value) = variable.value.as_deref().filter(|value| !value.is_empty()) {
        return expansion::expand(value, |name| before.get(name)).map(Some);
    }
    let Some(source) = &variable.value_from else { return Ok(Some(String::new())) };
    if let Some(field) = &source.field_ref {
        return field_value(field, &variable.name, input).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(resource, &variable.name, input, host).map(Some);
    }
    absent_object(source, &variable.name)
}

/// A reference to an object of a cluster, which a node without one cannot follow.
fn absent_object(source: &EnvVarSource, variable: &str) -> Result<Option<String>, SpecError> {
    let (kind, name, optional) = match (&source.config_map_key_ref, &source.secret_key_ref, &source.file_key_ref) {
        (Some(key), _, _) => ("configmap", &key.name, key.optional),
        (None, Some(key), _) => ("secret", &key.name, key.optional),
        (None, None, Some(key)) => ("volume", &key.volume_name, key.optional),
        (None, None, None) => return Ok(Some(String::new())),
    };
    if optional == Some(true) {
        return Ok(None);
    }
    Err(SpecError::Source { variable: variable.to_owned(), kind, name: name.clone() })
}

/// A field of the pod (`fieldRef`).
fn field_value(field: &ObjectFieldSelector, variable: &str, input: &SpecInput<'_>) -> Result<String, SpecError> {
    let pod = input.pod;
    let metadata = &pod.pod.metadata;
    let joined = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let first = |ips: &[std::net::IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    let path = field.field_path.as_str();
    if let Some((map, key)) = subscript(path) {
        let values = match map {
            "metadata.labels" => metadata.labels.as_ref(),
            "metadata.annotations" => metadata.annotations.as_ref(),
            _ => return Err(SpecError::Field { variable: variable.to_owned(), path: path.to_owned() }),
        };
        return Ok(values.and_then(|values| values.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.key.name().to_owned(),
        "metadata.namespace" => pod.key.namespace().to_owned(),
        "metadata.uid" => pod.uid.as_str().to_owned(),
        "spec.nodeName" => input.node.name.clone(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&input.node.addresses),
        "status.hostIPs" => joined(&input.node.addresses),
        "status.podIP" => first(&input.addresses.ips),
        "status.podIPs" => joined(&input.addresses.ips),
        _ => return Err(SpecError::Field { variable: variable.to_owned(), path: path.to_owned() }),
    })
}

/// Splits `metadata.labels['key']` into map and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// A request or limit of a container (`resourceFieldRef`); what is not limited is limited by the node.
fn resource_value(
    selector: &ResourceFieldSelector,
    variable: &str,
    input: &SpecInput<'_>,
    host: &HostInput,
) -> Result<String, SpecError> {
    let unknown = || SpecError::Field { variable: variable.to_owned(), path: selector.resource.clone() };
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => all_containers(input.pod.spec()).find(|other| other.name == name).ok_or_else(unknown)?,
        None => input.container,
    };
    let resources = container.resources.clone().unwrap_or_default();
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let amount = match kind {
        "requests" => request(&resources, name),
        "limits" => match (limit(&resources, name), name) {
            (Amount::ZERO, "cpu") => Amount::from_units(host.cpus),
            (Amount::ZERO, "memory") => Amount::from_units(input.node.memory_capacity),
            (limit, _) => limit,
        },
        _ => return Err(unknown()),
    };
    let divisor = match selector.divisor.as_ref().map(|divisor| divisor.0.as_str()) {
        None | Some("") => Amount::ZERO,
        Some(text) => parse(text).map_err(|_| unknown())?,
    };
    Ok(amount.divided_by(divisor).to_string())
}

#[cfg(test)]
mod tests;
