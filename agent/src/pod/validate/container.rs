//! One container: name, image, ports, environment, resources, mounts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, EnvVarSource, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::name::{self, is_dns_label, is_env_name, is_port_name};
use super::{one_of, security, unique};
use crate::pod::Fault;
use crate::pod::quantity;

/// Fields of a pod that `fieldRef` may name.
const FIELD_PATHS: [&str; 10] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
    "metadata.labels['<key>'] or metadata.annotations['<key>']",
];

pub(super) fn container(
    path: &str,
    spec: &PodSpec,
    container: &Container,
    volumes: &BTreeSet<String>,
    faults: &mut Vec<Fault>,
) {
    if !is_dns_label(&container.name) {
        let fault = match container.name.is_empty() {
            true => Fault::error(format!("{path}.name"), "required"),
            false => Fault::error(format!("{path}.name"), format!("{:?} is no container name", container.name))
                .with_remedy(name::LABEL_RULE),
        };
        faults.push(fault);
    }
    match container.image.as_deref().unwrap_or_default() {
        "" => faults.push(Fault::error(format!("{path}.image"), "required")),
        image if image.trim() != image => {
            faults.push(Fault::error(format!("{path}.image"), "begins or ends with a blank"));
        }
        _ => {}
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    one_of(&format!("{path}.imagePullPolicy"), container.image_pull_policy.as_deref(), &policies, faults);
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = container.termination_message_policy.as_deref();
    one_of(&format!("{path}.terminationMessagePolicy"), policy, &policies, faults);
    ports(path, container, faults);
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env(&format!("{path}.env[{index}]"), variable, faults);
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        env_from(&format!("{path}.envFrom[{index}]"), source, faults);
    }
    resources(path, container, faults);
    super::volume::mounts(path, container, volumes, faults);
    security::container(path, spec, container, faults);
}

fn ports(path: &str, container: &Container, faults: &mut Vec<Fault>) {
    let mut names = BTreeSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = format!("{path}.ports[{index}]");
        if !(1..=65535).contains(&port.container_port) {
            let message = format!("{} is not a port (1 to 65535)", port.container_port);
            faults.push(Fault::error(format!("{path}.containerPort"), message));
        }
        one_of(&format!("{path}.protocol"), port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], faults);
        if let Some(port_name) = port.name.as_deref().filter(|port_name| !port_name.is_empty()) {
            let path = format!("{path}.name");
            if !is_port_name(port_name) {
                faults.push(
                    Fault::error(&path, format!("{port_name:?} is no port name"))
                        .with_remedy("at most 15 lower-case letters, digits and -, with at least one letter"),
                );
            }
            unique(&path, port_name, &mut names, faults);
        }
    }
}

fn env(path: &str, variable: &EnvVar, faults: &mut Vec<Fault>) {
    if !is_env_name(&variable.name) {
        let message = format!("{:?} is no name of an environment variable", variable.name);
        faults.push(Fault::error(format!("{path}.name"), message));
    }
    let Some(source) = &variable.value_from else { return };
    if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        faults.push(Fault::error(format!("{path}.valueFrom"), "and value exclude each other"));
    }
    let path = format!("{path}.valueFrom");
    match (&source.field_ref, &source.resource_field_ref) {
        (Some(field), _) => {
            let keyed = ["metadata.labels['", "metadata.annotations['"].iter().any(|prefix| {
                field.field_path.strip_prefix(prefix).is_some_and(|key| key.len() > 2 && key.ends_with("']"))
            });
            if !keyed && !FIELD_PATHS.contains(&field.field_path.as_str()) {
                faults.push(
                    Fault::error(format!("{path}.fieldRef.fieldPath"), format!("{:?} cannot be had", field.field_path))
                        .with_remedy(format!("one of: {}", FIELD_PATHS.join(", "))),
                );
            }
        }
        (None, Some(field)) => {
            let known = ["limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
            one_of(&format!("{path}.resourceFieldRef.resource"), Some(&field.resource), &known, faults);
        }
        (None, None) => object_key(&path, source, faults),
    }
}

/// A key of a ConfigMap or Secret.
fn object_key(path: &str, source: &EnvVarSource, faults: &mut Vec<Fault>) {
    let (field, name, key) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => ("configMapKeyRef", &map.name, &map.key),
        (None, Some(secret)) => ("secretKeyRef", &secret.name, &secret.key),
        (None, None) if source.file_key_ref.is_some() => return,
        (None, None) => return faults.push(Fault::error(path, "names no source")),
    };
    let required = [("name", name), ("key", key)];
    let missing = required.into_iter().filter(|(_, value)| value.is_empty());
    faults.extend(missing.map(|(part, _)| Fault::error(format!("{path}.{field}.{part}"), "required")));
}

/// Objects whose keys all become variables.
fn env_from(path: &str, source: &EnvFromSource, faults: &mut Vec<Fault>) {
    let (field, name) = match (&source.config_map_ref, &source.secret_ref) {
        (Some(_), Some(_)) => return faults.push(Fault::error(path, "has two sources; an entry has one")),
        (Some(map), None) => ("configMapRef", &map.name),
        (None, Some(secret)) => ("secretRef", &secret.name),
        (None, None) => return faults.push(Fault::error(path, "names no source")),
    };
    if name.is_empty() {
        faults.push(Fault::error(format!("{path}.{field}.name"), "required"));
    }
    if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty() && !is_env_name(prefix)) {
        let message = format!("{prefix:?} is no beginning of an environment variable's name");
        faults.push(Fault::error(format!("{path}.prefix"), message));
    }
}

fn resources(path: &str, container: &Container, faults: &mut Vec<Fault>) {
    let Some(resources) = &container.resources else { return };
    let mut amount = |kind: &str, resource: &str, quantity: &Quantity| {
        let path = crate::pod::yaml::join(&format!("{path}.resources.{kind}"), resource);
        match quantity::parse(&quantity.0) {
            Ok(amount) if amount.nanos() < 0 => {
                faults.push(Fault::error(path, format!("{} is less than 0", quantity.0)));
                None
            }
            Ok(amount) => Some((path, amount)),
            Err(error) => {
                faults.push(
                    Fault::error(path, format!("{:?}: {error}", quantity.0)).with_remedy("as in 500m, 1, 64Mi or 1Gi"),
                );
                None
            }
        }
    };
    let limits: Vec<_> = resources
        .limits
        .iter()
        .flatten()
        .filter_map(|(name, quantity)| Some((name, amount("limits", name, quantity)?)))
        .collect();
    let requests: Vec<_> = resources
        .requests
        .iter()
        .flatten()
        // What defaulting took over from the limits is judged there.
        .filter(|(name, quantity)| resources.limits.as_ref().and_then(|limits| limits.get(*name)) != Some(quantity))
        .filter_map(|(name, quantity)| Some((name, amount("requests", name, quantity)?)))
        .collect();
    for (name, (path, request)) in requests {
        let limit = limits.iter().find(|(limited, _)| *limited == name);
        if limit.is_some_and(|(_, (_, limit))| request.nanos() > limit.nanos()) {
            faults.push(Fault::error(path, "is more than the limit"));
        }
    }
}
