//! Which pods are behind each Service: what the controllers of Endpoints and EndpointSlices decide in a cluster.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::object::local_service::{LocalService, Port, Protocol, ServiceKind, Target};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{PodKey, is_terminal_phase};
use limpet_model::source::SourceKind;

use crate::addresses::{Assigned, balanced_key, families, port_key};
use crate::settings::Settings;

/// A Service of a source.
#[derive(Debug, Clone)]
pub struct Definition {
    pub source: SourceKind,
    pub record: Arc<ObjectRecord>,
}

impl Definition {
    /// What it is; `None`: it is no Service.
    pub fn service(&self) -> Option<&LocalService> {
        self.record.service.as_deref()
    }
}

/// A Service with its addresses and its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedService {
    pub source: SourceKind,
    /// The file or URL that it is from.
    pub origin: Arc<str>,
    pub key: ObjectKey,
    pub definition: Arc<LocalService>,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<ServedPort>,
    /// The pods by whose addresses names are answered.
    pub members: Vec<Member>,
    /// Why it is not served.
    pub fault: Option<String>,
}

/// A port of a Service, with where it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedPort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub number: u16,
    /// Its port of the node.
    pub node_port: Option<u16>,
    /// Whether its own number is a port of the node, too.
    pub is_balanced: bool,
    /// In the order of the addresses.
    pub endpoints: Vec<Endpoint>,
}

/// Where connections are passed on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
    /// Whether it is in the node's own network.
    pub is_of_node: bool,
}

/// A pod of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub pod: PodKey,
    /// Its host name, if it has one below the name of the Service.
    pub hostname: Option<Arc<str>>,
    pub addresses: Vec<IpAddr>,
    /// For each port of the Service the pod's.
    ports: Vec<Option<u16>>,
    is_of_node: bool,
}

impl Member {
    /// Its port for the port of the Service at that place.
    pub fn port(&self, index: usize) -> Option<u16> {
        self.ports.get(index).copied().flatten()
    }
}

/// The Service as it is served.
pub fn serve(
    settings: &Settings,
    definition: &Definition,
    assigned: Result<&Assigned, String>,
    pods: &ObservedPods,
) -> Option<ServedService> {
    let service = definition.record.service.clone()?;
    let nothing = Assigned::default();
    let (assigned, mut fault) = match assigned {
        Ok(assigned) => (assigned, None),
        Err(fault) => (&nothing, Some(fault)),
    };
    let is_of_family: Vec<bool> = match families(&settings.ranges, &service) {
        Ok(ranges) => ranges.iter().map(crate::cidr::Cidr::is_ipv4).collect(),
        Err(why) => {
            fault = fault.or(Some(why));
            Vec::new()
        }
    };
    let (mut members, mut leaving) = (Vec::new(), Vec::new());
    if fault.is_none() && !matches!(service.kind, ServiceKind::ExternalName(_)) {
        for pod in pods.pods.values() {
            match (
                standing(&definition.record.key, &service, pod),
                member(&definition.record.key, &service, pod, &is_of_family),
            ) {
                (Standing::Member, Some(member)) => members.push(member),
                (Standing::Leaving, Some(member)) => leaving.push(member),
                _ => {}
            }
        }
    }
    // While all pods end, those that still work get the connections, as kube-proxy has it.
    let targets = if members.is_empty() { &leaving } else { &members };
    let port = |(index, port): (usize, &Port)| ServedPort {
        name: Arc::clone(&port.name),
        protocol: port.protocol,
        number: port.number,
        node_port: assigned.node_ports.get(&port_key(port.protocol, port.number)).copied(),
        is_balanced: assigned.node_ports.contains_key(&balanced_key(port.protocol, port.number)),
        endpoints: endpoints(targets, index),
    };
    Some(ServedService {
        source: definition.source,
        origin: Arc::clone(&definition.record.origin),
        key: definition.record.key.clone(),
        addresses: assigned.addresses.clone(),
        ports: service.ports.iter().enumerate().map(port).collect(),
        definition: service,
        members,
        fault,
    })
}

/// What a pod is to a Service.
enum Standing {
    Member,
    /// It ends, and is still ready.
    Leaving,
    Other,
}

fn standing(key: &ObjectKey, service: &LocalService, pod: &ObservedPod) -> Standing {
    let record = &pod.record;
    if record.source == SourceKind::Api || record.key.namespace() != &*key.namespace {
        return Standing::Other;
    }
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    let labels = record.pod.metadata.labels.as_ref().unwrap_or(&NONE);
    let is_selected = service.selector.iter().all(|(name, value)| labels.get(name) == Some(value));
    if !is_selected || service.selector.is_empty() || pod.status.phase.as_deref().is_some_and(is_terminal_phase) {
        return Standing::Other;
    }
    let conditions = pod.status.conditions.iter().flatten();
    let is_ready = conditions.into_iter().any(|known| known.type_ == "Ready" && known.status == "True");
    let ends = pod.terminating_since.is_some() || record.is_deleting();
    match (service.has_unready || (is_ready && !ends), is_ready) {
        (true, _) => Standing::Member,
        (false, true) => Standing::Leaving,
        (false, false) => Standing::Other,
    }
}

fn member(key: &ObjectKey, service: &LocalService, pod: &ObservedPod, families: &[bool]) -> Option<Member> {
    let spec = pod.record.spec();
    let addresses: Vec<IpAddr> = pod.status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
    let of_family = |is_ipv4: &bool| addresses.iter().find(|address| address.is_ipv4() == *is_ipv4).copied();
    let addresses: Vec<IpAddr> = families.iter().filter_map(of_family).collect();
    if addresses.is_empty() {
        return None;
    }
    let is_below = spec.subdomain.as_deref() == Some(&*key.name);
    let hostname = spec.hostname.as_deref().filter(|name| is_below && !name.is_empty());
    Some(Member {
        pod: pod.record.key.clone(),
        hostname: hostname.map(Arc::from),
        addresses,
        ports: service.ports.iter().map(|port| target(pod, port)).collect(),
        is_of_node: pod.record.host_network(),
    })
}

/// The pod's port for one of a Service.
fn target(pod: &ObservedPod, port: &Port) -> Option<u16> {
    let name = match &port.target {
        Target::Number(number) => return Some(*number),
        Target::Name(name) => name,
    };
    let spec = pod.record.spec();
    let restarts = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(restarts);
    let mut ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let container_port = ports.find(|known| {
        let protocol = known.protocol.as_deref().unwrap_or("TCP");
        known.name.as_deref() == Some(&**name) && protocol == port.protocol.as_str()
    })?;
    u16::try_from(container_port.container_port).ok()
}

fn endpoints(members: &[Member], index: usize) -> Vec<Endpoint> {
    let of_member = |member: &Member| {
        let (port, is_of_node) = (member.port(index), member.is_of_node);
        let endpoint = move |address: &IpAddr| Some(Endpoint { address: *address, port: port?, is_of_node });
        member.addresses.iter().filter_map(endpoint).collect::<Vec<_>>()
    };
    let mut endpoints: Vec<Endpoint> = members.iter().flat_map(of_member).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    endpoints
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests;
