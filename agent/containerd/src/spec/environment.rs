//! A container's environment: the image's, the runtime's own variables, the Pod's.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector};

use super::host::HostInput;
use super::{SpecError, SpecInput, env_file, expansion};
use limpet_model::object::{Entry, ObjectKind, ObjectRecord};
use limpet_model::pod::downward::{metadata_field, resource_field};

/// containerd's `PATH` for a container whose image has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables in order; setting one again changes it in its position. Never printed, because some may be secret.
#[derive(Default)]
pub(super) struct Variables {
    set: Vec<(String, String)>,
    /// Variables that apply only if no other has their name.
    defaults: BTreeMap<String, String>,
}

impl Variables {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let set = self.set.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        set.or_else(|| self.defaults.get(name).map(String::as_str))
    }

    fn set(&mut self, name: &str, value: String) {
        match self.set.iter_mut().find(|(known, _)| known == name) {
            Some((_, current)) => *current = value,
            None => self.set.push((name.to_owned(), value)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        let defaults = self.defaults.iter().filter(|(name, _)| !self.set.iter().any(|(set, _)| set == *name));
        self.set.iter().map(|(name, value)| (name, value)).chain(defaults)
    }
}

/// The Pod's own variables, to which references in the command may refer: those of `envFrom` in order, then those of
/// `env`; later ones win. As in kubelet, all of them override the variables of Services.
///
/// # Errors
///
/// The source of a variable's value does not exist.
pub(super) fn pod_variables(input: &SpecInput<'_>, host: &HostInput) -> Result<Variables, SpecError> {
    let mut variables = Variables::default();
    let services = input.objects.iter().filter(|object| object.key.kind == ObjectKind::ServiceVariables);
    for (name, entry) in services.flat_map(|object| &object.data) {
        variables.defaults.insert(name.clone(), entry.bytes.expose_text().unwrap_or_default().to_owned());
    }
    for source in input.container.env_from.iter().flatten() {
        let (kind, name, optional) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), _) => (ObjectKind::ConfigMap, &map.name, map.optional),
            (None, Some(secret)) => (ObjectKind::Secret, &secret.name, secret.optional),
            (None, None) => continue,
        };
        let Some(object) = find(input, kind, name, optional)? else { continue };
        let prefix = source.prefix.as_deref().unwrap_or_default();
        for (key, entry) in object.data.iter().filter(|(_, entry)| !entry.binary) {
            variables.set(&format!("{prefix}{key}"), text(object, key, entry)?);
        }
    }
    for variable in input.container.env.iter().flatten() {
        if let Some(value) = value_of(variable, &variables, input, host)? {
            variables.set(&variable.name, value);
        }
    }
    Ok(variables)
}

/// `process.env`: the runtime's variables, then the image's, then device plugins', then the Pod's; the later wins.
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
    for (name, value) in input.given.iter().flat_map(|device| &device.env) {
        all.set(name, value.clone());
    }
    for (name, value) in pod.iter() {
        all.set(name, value.clone());
    }
    if all.get("HOME").is_none() && !input.user.home.is_empty() {
        all.set("HOME", input.user.home.clone());
    }
    all.set.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A variable's value; `None` if its source is optional and missing.
fn value_of(
    variable: &EnvVar,
    before: &Variables,
    input: &SpecInput<'_>,
    host: &HostInput,
) -> Result<Option<String>, SpecError> {
    if let Some(value) = variable.value.as_deref().filter(|value| !value.is_empty()) {
        return Ok(Some(expansion::expand(value, |name| before.get(name))));
    }
    let Some(source) = &variable.value_from else { return Ok(Some(String::new())) };
    if let Some(file) = &source.file_key_ref {
        return file_value(file, &variable.name, host);
    }
    if let Some(field) = &source.field_ref {
        return field_value(field, &variable.name, input).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        let unknown = || SpecError::Field { variable: variable.name.clone(), path: resource.resource.clone() };
        let limits = input.node.limits.of_pod(input.pod);
        return resource_field(input.pod, Some(input.container), resource, limits).ok_or_else(unknown).map(Some);
    }
    object_value(source, input)
}

/// The value of a key in a file of one of the pod's volumes.
fn file_value(file: &FileKeySelector, variable: &str, host: &HostInput) -> Result<Option<String>, SpecError> {
    let (volume, path) = (&file.volume_name, &file.path);
    let text = host.env_files.get(&(volume.clone(), path.clone())).and_then(Option::as_deref);
    let value = match text {
        Some(text) => env_file::value(text, &file.key),
        None if file.optional == Some(true) => return Ok(None),
        None => {
            let (variable, volume, path) = (variable.to_owned(), volume.clone(), path.clone());
            return Err(SpecError::EnvFile { variable, volume, path, source: io::ErrorKind::NotFound.into() });
        }
    };
    let (variable, volume, path) = (variable.to_owned(), volume.clone(), path.clone());
    match value {
        Ok(None) if file.optional != Some(true) => {
            Err(SpecError::NoEnvFileKey { variable, volume, path, key: file.key.clone() })
        }
        Ok(value) => Ok(value),
        Err(env_file::Fault { line, reason }) => Err(SpecError::EnvFileLine { variable, volume, path, line, reason }),
    }
}

/// The value of a key of a ConfigMap or Secret.
fn object_value(source: &EnvVarSource, input: &SpecInput<'_>) -> Result<Option<String>, SpecError> {
    let (kind, name, key, optional) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => (ObjectKind::ConfigMap, &map.name, &map.key, map.optional),
        (None, Some(secret)) => (ObjectKind::Secret, &secret.name, &secret.key, secret.optional),
        (None, None) => return Ok(Some(String::new())),
    };
    let Some(object) = find(input, kind, name, optional)? else { return Ok(None) };
    match object.data.get(key).filter(|entry| !entry.binary) {
        Some(entry) => text(object, key, entry).map(Some),
        None if optional == Some(true) => Ok(None),
        None => Err(SpecError::NoKey { object: object.key.clone(), key: key.clone() }),
    }
}

/// The object with this name; `None` if it is optional and missing.
fn find<'a>(
    input: &SpecInput<'a>,
    kind: ObjectKind,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a Arc<ObjectRecord>>, SpecError> {
    match input.objects.get(kind, name) {
        None if optional != Some(true) => Err(SpecError::NoObject { kind, name: name.to_owned() }),
        value => Ok(value),
    }
}

/// Checks that a value can be a variable's: text without a zero byte.
fn text(object: &ObjectRecord, key: &str, entry: &Entry) -> Result<String, SpecError> {
    let text = entry.bytes.expose_text().filter(|text| !text.contains('\0'));
    text.map(str::to_owned).ok_or_else(|| SpecError::NoText { object: object.key.clone(), key: key.to_owned() })
}

/// The value of a pod field (`fieldRef`).
fn field_value(field: &ObjectFieldSelector, variable: &str, input: &SpecInput<'_>) -> Result<String, SpecError> {
    let path = field.field_path.as_str();
    let node_ips: Vec<IpAddr> = input.node_addresses.iter().collect();
    let ips = |ips: &[IpAddr], all: bool| {
        let shown = if all { ips } else { &ips[..ips.len().min(1)] };
        let unknown = || SpecError::NoAddress { variable: variable.to_owned(), field: path.to_owned() };
        let text = shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if shown.is_empty() { Err(unknown()) } else { Ok(text) }
    };
    Ok(match path {
        "spec.nodeName" => input.node.name.clone(),
        "spec.serviceAccountName" => input.pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => ips(&node_ips, path == "status.hostIPs")?,
        "status.podIP" | "status.podIPs" => ips(&input.addresses.ips, path == "status.podIPs")?,
        _ => metadata_field(input.pod, path)
            .ok_or_else(|| SpecError::Field { variable: variable.to_owned(), path: path.to_owned() })?,
    })
}

#[cfg(test)]
mod tests;
