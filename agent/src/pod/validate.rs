//! Kubernetes' validation of a Pod, for the fields limpet acts on. Every fault names its field, and a remedy where one
//! helps. Judged after defaulting and naming, as kubelet does.

mod container;
mod name;
mod security;
mod volume;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use super::{Fault, PodRecord};
use name::qualified_name_fault;
pub(crate) use name::{is_dns_label, is_dns_subdomain};

/// Bytes of all annotations of one object.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// Containers of one pod; kubelet has no limit, a file has one.
const MAX_CONTAINERS: usize = 1_000;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// Everything that is wrong with a pod.
pub(super) fn validate(record: &PodRecord) -> Vec<Fault> {
    let mut faults = Vec::new();
    metadata(record, &mut faults);
    spec(record.spec(), &mut faults);
    faults
}

fn metadata(record: &PodRecord, faults: &mut Vec<Fault>) {
    let metadata = &record.pod.metadata;
    let name = record.key.name();
    if name.starts_with('-') {
        faults.push(Fault::error("metadata.name", "required"));
    } else if !is_dns_subdomain(name) {
        let message = format!("{name:?} is no name for a pod (the node's name is appended)");
        faults.push(Fault::error("metadata.name", message).with_remedy(name::SUBDOMAIN_RULE));
    }
    if !is_dns_label(record.key.namespace()) {
        let message = format!("{:?} is no namespace", record.key.namespace());
        faults.push(Fault::error("metadata.namespace", message).with_remedy(name::LABEL_RULE));
    }
    if !is_safe_uid(record.uid.as_str()) {
        let message = format!("{:?} is no UID", record.uid.as_str());
        faults.push(Fault::error("metadata.uid", message).with_remedy("leave it out, or use a UUID"));
    }
    for (key, value) in metadata.labels.iter().flatten() {
        let path = super::yaml::join("metadata.labels", key);
        faults.extend(qualified_name_fault(&path, key));
        if !name::is_label_value(value) {
            let message = format!("{value:?} is no label value");
            faults.push(Fault::error(path, message).with_remedy(name::LABEL_VALUE_RULE));
        }
    }
    let annotations = metadata.annotations.iter().flatten();
    let bytes: usize = annotations.clone().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATIONS {
        let message = format!("{bytes} bytes of annotations; at most {MAX_ANNOTATIONS}");
        faults.push(Fault::error("metadata.annotations", message));
    }
    for (key, _) in annotations {
        faults.extend(qualified_name_fault(&super::yaml::join("metadata.annotations", key), &key.to_lowercase()));
    }
}

/// Safe as the name of a directory and of a cgroup.
fn is_safe_uid(uid: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
    !uid.is_empty() && uid.len() <= 128 && uid.bytes().all(plain) && uid.as_bytes()[0].is_ascii_alphanumeric()
}

/// A text that must be one of a few.
fn one_of(path: &str, value: Option<&str>, allowed: &[&str], faults: &mut Vec<Fault>) {
    if let Some(value) = value
        && !allowed.contains(&value)
    {
        faults.push(Fault::error(path, format!("{value:?} is not one of: {}", allowed.join(", "))));
    }
}

/// Adds what is wrong with a name that must be unique within `seen`.
fn unique(path: &str, name: &str, seen: &mut BTreeSet<String>, faults: &mut Vec<Fault>) {
    if !seen.insert(name.to_owned()) {
        faults.push(Fault::error(path, format!("{name:?} is used twice")));
    }
}

fn spec(spec: &PodSpec, faults: &mut Vec<Fault>) {
    one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"], faults);
    let dns_policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    one_of("spec.dnsPolicy", spec.dns_policy.as_deref(), &dns_policies, faults);
    let grace = spec.termination_grace_period_seconds.unwrap_or(0);
    if grace < 0 {
        faults.push(Fault::error("spec.terminationGracePeriodSeconds", format!("{grace} is less than 0")));
    }
    for (path, label) in [("spec.hostname", &spec.hostname), ("spec.subdomain", &spec.subdomain)] {
        if let Some(label) = label.as_deref().filter(|label| !label.is_empty() && !is_dns_label(label)) {
            faults.push(Fault::error(path, format!("{label:?} is no host name")).with_remedy(name::LABEL_RULE));
        }
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = format!("spec.hostAliases[{index}]");
        if alias.ip.parse::<IpAddr>().is_err() {
            faults.push(Fault::error(format!("{path}.ip"), format!("{:?} is no IP address", alias.ip)));
        }
        for (number, host) in alias.hostnames.iter().flatten().enumerate() {
            if !is_dns_subdomain(host) {
                let path = format!("{path}.hostnames[{number}]");
                faults.push(Fault::error(path, format!("{host:?} is no host name")).with_remedy(name::SUBDOMAIN_RULE));
            }
        }
    }
    dns_config(spec, faults);
    security::pod(spec, faults);
    let volumes = volume::volumes(spec, faults);
    containers(spec, &volumes, faults);
}

fn containers(spec: &PodSpec, volumes: &BTreeSet<String>, faults: &mut Vec<Fault>) {
    if spec.containers.is_empty() {
        faults.push(Fault::error("spec.containers", "required").with_remedy("a Pod needs at least one container"));
    }
    let inits = spec.init_containers.iter().flatten();
    if spec.containers.len() + inits.clone().count() > MAX_CONTAINERS {
        faults.push(Fault::error("spec.containers", format!("more than {MAX_CONTAINERS} containers")));
        return;
    }
    let mut names = BTreeSet::new();
    for (list, index, one) in inits
        .enumerate()
        .map(|(index, one)| ("initContainers", index, one))
        .chain(spec.containers.iter().enumerate().map(|(index, one)| ("containers", index, one)))
    {
        let path = format!("spec.{list}[{index}]");
        unique(&format!("{path}.name"), &one.name, &mut names, faults);
        container::container(&path, spec, one, volumes, faults);
    }
}

fn dns_config(spec: &PodSpec, faults: &mut Vec<Fault>) {
    let config = spec.dns_config.clone().unwrap_or_default();
    let PodDNSConfig { nameservers, searches, .. } = &config;
    let servers: Vec<&String> = nameservers.iter().flatten().collect();
    if spec.dns_policy.as_deref() == Some("None") && servers.is_empty() {
        faults.push(
            Fault::error("spec.dnsConfig.nameservers", "required with dnsPolicy: None")
                .with_remedy("name a server, or use dnsPolicy: Default"),
        );
    }
    if servers.len() > MAX_NAMESERVERS {
        let message = format!("{} servers; at most {MAX_NAMESERVERS}", servers.len());
        faults.push(Fault::error("spec.dnsConfig.nameservers", message));
    }
    for (index, server) in servers.iter().enumerate() {
        if server.parse::<IpAddr>().is_err() {
            let path = format!("spec.dnsConfig.nameservers[{index}]");
            faults.push(Fault::error(path, format!("{server:?} is no IP address")));
        }
    }
    let searches: Vec<&String> = searches.iter().flatten().collect();
    if searches.len() > MAX_SEARCHES {
        let message = format!("{} search domains; at most {MAX_SEARCHES}", searches.len());
        faults.push(Fault::error("spec.dnsConfig.searches", message));
    }
    for (index, search) in searches.iter().enumerate() {
        let domain = search.strip_suffix('.').unwrap_or(search);
        if *search != "." && !domain.is_empty() && !is_dns_subdomain(&domain.replace('_', "a")) {
            let path = format!("spec.dnsConfig.searches[{index}]");
            faults.push(Fault::error(path, format!("{search:?} is no domain")).with_remedy(name::SUBDOMAIN_RULE));
        }
    }
}

#[cfg(test)]
mod tests;
