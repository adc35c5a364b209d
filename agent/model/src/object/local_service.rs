//! Services that a manifest defines.
//!
//! In: a decoded document. Out: a [`LocalService`] within its [`ObjectRecord`](super::ObjectRecord). Which addresses a Service has,
//! and which pods are behind it, is decided in `limpet-services`. Pure: no I/O, no clock.

mod rules;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value};

use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::metadata::{key, metadata, typed};
use crate::pod::{Fault, FaultList, FieldValidation, fingerprint};

/// What a Service without an address of its own has as `clusterIP`.
const HEADLESS: &str = "None";

/// One accepted version of one Service of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalService {
    /// The whole document without its status, canonical JSON, as stored on disk.
    pub manifest: Arc<[u8]>,
    pub kind: ServiceKind,
    /// The addresses that it asks for (`clusterIP`, `clusterIPs`).
    pub addresses: Vec<IpAddr>,
    pub families: Families,
    pub ports: Vec<Port>,
    /// The labels of its pods.
    pub selector: BTreeMap<String, String>,
    /// A client stays with its pod (`sessionAffinity: ClientIP`).
    pub is_sticky: bool,
    /// Pods that are not ready belong to it, too (`publishNotReadyAddresses`).
    pub has_unready: bool,
    /// Clients from outside keep their address (`externalTrafficPolicy: Local`).
    pub keeps_source: bool,
}

/// How a Service is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServiceKind {
    /// By an address of its own.
    #[default]
    ClusterIp,
    /// By the addresses of its pods.
    Headless,
    /// By an address of its own, and a port of the node.
    NodePort,
    /// The same, and by its own ports on the node's addresses.
    LoadBalancer,
    /// By another name.
    ExternalName(Arc<str>),
}

impl ServiceKind {
    /// The type as manifests write it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::ClusterIp | Self::Headless => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalName(_) => "ExternalName",
        }
    }

    /// Whether it has an address of its own.
    pub fn has_address(&self) -> bool {
        matches!(self, Self::ClusterIp | Self::NodePort | Self::LoadBalancer)
    }
}

/// Of which address families a Service is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Families {
    /// Those that it names (`ipFamilies`), IPv4 as true.
    pub named: Vec<bool>,
    pub policy: FamilyPolicy,
}

/// `ipFamilyPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FamilyPolicy {
    #[default]
    SingleStack,
    PreferDualStack,
    RequireDualStack,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Empty if it has none.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub number: u16,
    /// The port of the pods.
    pub target: Target,
    /// The port of the node that it asks for.
    pub node_port: Option<u16>,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// The name as manifests write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Number(u16),
    /// The port of a container of that name.
    Name(Arc<str>),
}

impl LocalService {
    /// The same in another namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Self {
        let mut document: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        document["metadata"]["namespace"] = Value::from(namespace);
        Self { manifest: Arc::from(fingerprint::canonical(&document)), ..self.clone() }
    }
}

/// Decodes a Service of a manifest: with its key, unless it has an error, and its faults.
pub(crate) fn read(value: &Value, validation: FieldValidation) -> (Option<(ObjectKey, LocalService)>, FaultList) {
    let mut faults = FaultList::default();
    let Some(document) = value.as_object() else {
        faults.push(Fault::error("", "must be a map"));
        return (None, faults);
    };
    let metadata = metadata(document, &mut faults);
    let key = key(metadata, ObjectKind::Service, &mut faults);
    let mut document = value.clone();
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status");
    }
    let spec = typed::<Service>(&document, &mut faults).map(|service| service.spec.unwrap_or_default());
    faults.relax(validation);
    if let Some(spec) = &spec {
        rules::check(&key, spec, &mut faults);
    }
    if faults.errors() > 0 {
        return (None, faults);
    }
    document["metadata"]["namespace"] = Value::from(&*key.namespace);
    (spec.map(|spec| (key, settled(&document, &spec))), faults)
}

/// Decodes a Service that was accepted before and stored by limpet. It is not validated again.
///
/// # Errors
/// It is none.
pub(crate) fn restore(value: &Value) -> Result<(ObjectKey, LocalService), Vec<Fault>> {
    let mut faults = FaultList::default();
    let metadata = metadata(value.as_object().unwrap_or(&Map::new()), &mut FaultList::default());
    let key = key(metadata, ObjectKind::Service, &mut faults);
    let spec = typed::<Service>(value, &mut FaultList::default()).and_then(|service| service.spec);
    match spec.filter(|_| faults.errors() == 0) {
        Some(spec) => Ok((key, settled(value, &spec))),
        None => {
            faults.push(Fault::error("", "stored service: damaged"));
            Err(faults.finish())
        }
    }
}

/// What the Service comes to; its spec was accepted.
fn settled(document: &Value, spec: &ServiceSpec) -> LocalService {
    let kind = match spec.type_.as_deref() {
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some("ExternalName") => {
            let name = spec.external_name.as_deref().unwrap_or_default();
            ServiceKind::ExternalName(Arc::from(name.trim_end_matches('.')))
        }
        _ if spec.cluster_ip.as_deref() == Some(HEADLESS) => ServiceKind::Headless,
        _ => ServiceKind::ClusterIp,
    };
    LocalService {
        manifest: Arc::from(fingerprint::canonical(document)),
        kind,
        addresses: addresses(spec).filter_map(|address| address.parse().ok()).collect(),
        families: Families {
            named: spec.ip_families.iter().flatten().map(|family| family == "IPv4").collect(),
            policy: match spec.ip_family_policy.as_deref() {
                Some("PreferDualStack") => FamilyPolicy::PreferDualStack,
                Some("RequireDualStack") => FamilyPolicy::RequireDualStack,
                _ => FamilyPolicy::SingleStack,
            },
        },
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
        selector: spec.selector.clone().unwrap_or_default(),
        is_sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
        has_unready: spec.publish_not_ready_addresses.unwrap_or_default(),
        keeps_source: spec.external_traffic_policy.as_deref() == Some("Local"),
    }
}

/// The addresses that are asked for, each once.
fn addresses(spec: &ServiceSpec) -> impl Iterator<Item = &str> {
    let first = spec.cluster_ip.as_deref().filter(|address| !address.is_empty());
    let more = spec.cluster_ips.iter().flatten().map(String::as_str);
    first.into_iter().chain(more.filter(move |address| Some(*address) != first))
}

fn port(port: &ServicePort) -> Option<Port> {
    let number = u16::try_from(port.port).ok()?;
    let target = match &port.target_port {
        None | Some(IntOrString::Int(0)) => Target::Number(number),
        Some(IntOrString::Int(target)) => Target::Number(u16::try_from(*target).ok()?),
        Some(IntOrString::String(name)) => match name.parse() {
            Ok(target) => Target::Number(target),
            Err(_) => Target::Name(Arc::from(name.as_str())),
        },
    };
    Some(Port {
        name: Arc::from(port.name.as_deref().unwrap_or_default()),
        protocol: if port.protocol.as_deref() == Some("UDP") { Protocol::Udp } else { Protocol::Tcp },
        number,
        target,
        node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
