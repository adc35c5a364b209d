//! Kubernetes' rules for Services (`ValidateService` in `pkg/apis/core/validation`), and what a node does not serve.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{HEADLESS, addresses};
use crate::object::key::ObjectKey;
use crate::pod::name::is_port_name;
use crate::pod::{Fault, FaultList, is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name};

/// More are refused by an apiserver, too, as its object would be too large for its store.
const MAX_PORTS: usize = 1_000;
/// The longest time for which a client stays with a pod.
const MAX_AFFINITY_SECONDS: i32 = 86_400;
const PORT_RULE: &str = "must be between 1 and 65535, inclusive";

/// Adds the faults of a Service.
pub(super) fn check(key: &ObjectKey, spec: &ServiceSpec, faults: &mut FaultList) {
    if !key.name.is_empty() && !is_dns_label(&key.name) {
        let message = format!("{:?} is not a valid name for a Service, which is a label of a DNS name", key.name);
        faults.push(
            Fault::error("metadata.name", message)
                .with_remedy("lower-case letters, digits and -, at most 63 characters"),
        );
    }
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    match kind {
        "ClusterIP" | "NodePort" | "LoadBalancer" => with_pods(kind, spec, faults),
        "ExternalName" => external_name(spec, faults),
        other => one_of(faults, "spec.type", other, "ClusterIP, ExternalName, LoadBalancer, NodePort"),
    }
    unserved(kind, spec, faults);
    policies(spec, faults);
}

fn one_of(faults: &mut FaultList, path: &str, value: &str, known: &str) {
    faults.push(Fault::error(path, format!("{value:?} is not supported")).with_remedy(format!("use one of {known}")));
}

fn with_pods(kind: &str, spec: &ServiceSpec, faults: &mut FaultList) {
    let is_headless = spec.cluster_ip.as_deref() == Some(HEADLESS);
    if spec.selector.iter().flatten().next().is_none() {
        let message = "required: a node without an apiserver has no EndpointSlices for a Service without a selector";
        let remedy = "name labels of its pods, or use type ExternalName";
        faults.push(Fault::error("spec.selector", message).with_remedy(remedy));
    }
    for (name, value) in spec.selector.iter().flatten() {
        if !is_qualified_name(name) || !is_label_value(value) {
            faults.push(Fault::error("spec.selector", format!("{name}={value} is not a label")));
        }
    }
    let ports = spec.ports.as_deref().unwrap_or_default();
    if ports.is_empty() && !is_headless {
        faults.push(Fault::error("spec.ports", "required"));
    }
    if ports.len() > MAX_PORTS {
        faults.push(Fault::error("spec.ports", format!("{} are more than {MAX_PORTS}", ports.len())));
        return;
    }
    let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        check_port(&path, port, ports.len() > 1, faults);
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !names.insert(port.name.as_deref().unwrap_or_default()) {
            faults.push(Fault::error(format!("{path}.name"), "is the name of another port"));
        }
        if !numbers.insert((protocol, port.port)) {
            faults.push(Fault::error(format!("{path}.port"), format!("{protocol} {} is there twice", port.port)));
        }
        let Some(node_port) = port.node_port.filter(|port| *port != 0) else { continue };
        let path = format!("{path}.nodePort");
        if kind == "ClusterIP" {
            faults.push(Fault::error(path, "may not be used when `type` is 'ClusterIP'").with_remedy("type: NodePort"));
        } else if !is_port(node_port) {
            faults.push(Fault::error(path, format!("{node_port} {PORT_RULE}")));
        } else if !node_ports.insert((protocol, node_port)) {
            faults.push(Fault::error(path, format!("{protocol} {node_port} is there twice")));
        }
    }
    check_addresses(kind, is_headless, spec, faults);
}

fn is_port(number: i32) -> bool {
    u16::try_from(number).is_ok_and(|number| number != 0)
}

fn check_port(path: &str, port: &ServicePort, needs_name: bool, faults: &mut FaultList) {
    match port.name.as_deref() {
        None | Some("") if needs_name => {
            faults.push(Fault::error(format!("{path}.name"), "required: there are several ports"));
        }
        None | Some("") => {}
        Some(name) if !is_dns_label(name) => {
            let remedy = "lower-case letters, digits and -, at most 63 characters";
            faults.push(Fault::error(format!("{path}.name"), format!("{name:?} is not valid")).with_remedy(remedy));
        }
        Some(_) => {}
    }
    if !is_port(port.port) {
        faults.push(Fault::error(format!("{path}.port"), format!("{} {PORT_RULE}", port.port)));
    }
    match port.protocol.as_deref() {
        None | Some("" | "TCP" | "UDP") => {}
        Some("SCTP") => {
            let remedy = "use the pod's own address, by a headless Service without that port";
            let fault =
                Fault::error(format!("{path}.protocol"), "SCTP is not supported: kernels of edge devices lack it");
            faults.push(fault.with_remedy(remedy));
        }
        Some(other) => one_of(faults, &format!("{path}.protocol"), other, "TCP, UDP"),
    }
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => {}
        Some(IntOrString::Int(target)) if !is_port(*target) => {
            faults.push(Fault::error(format!("{path}.targetPort"), format!("{target} {PORT_RULE}")));
        }
        Some(IntOrString::String(name)) if !is_port_name(name) && !name.parse::<u16>().is_ok_and(|port| port != 0) => {
            let remedy = "a number, or the name of a container's port: at most 15 lower-case letters, digits and -";
            let fault = Fault::error(format!("{path}.targetPort"), format!("{name:?} is no port"));
            faults.push(fault.with_remedy(remedy));
        }
        Some(_) => {}
    }
}

fn check_addresses(kind: &str, is_headless: bool, spec: &ServiceSpec, faults: &mut FaultList) {
    if is_headless && kind != "ClusterIP" {
        faults.push(Fault::error("spec.clusterIP", format!("may not be set to 'None' for {kind} services")));
    }
    let mut known: Vec<IpAddr> = Vec::new();
    for address in addresses(spec).filter(|address| !(is_headless && *address == HEADLESS)) {
        match address.parse::<IpAddr>() {
            Ok(address) if known.iter().any(|known| known.is_ipv4() == address.is_ipv4()) => {
                faults.push(Fault::error("spec.clusterIPs", "may hold at most one address of each family"));
            }
            Ok(address) => known.push(address),
            Err(_) => faults.push(Fault::error("spec.clusterIP", format!("{address:?} is not an IP address"))),
        }
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    for (index, family) in families.iter().enumerate() {
        if family != "IPv4" && family != "IPv6" {
            one_of(faults, &format!("spec.ipFamilies[{index}]"), family, "IPv4, IPv6");
        } else if families[..index].contains(family) {
            faults.push(Fault::error(format!("spec.ipFamilies[{index}]"), format!("{family} is there twice")));
        }
    }
    match spec.ip_family_policy.as_deref() {
        None | Some("PreferDualStack" | "RequireDualStack") => {}
        Some("SingleStack") if families.len() < 2 && known.len() < 2 => {}
        Some("SingleStack") => {
            let message = "may be SingleStack only when there is one IP family";
            faults.push(Fault::error("spec.ipFamilyPolicy", message).with_remedy("PreferDualStack"));
        }
        Some(other) => {
            one_of(faults, "spec.ipFamilyPolicy", other, "SingleStack, PreferDualStack, RequireDualStack");
        }
    }
}

fn external_name(spec: &ServiceSpec, faults: &mut FaultList) {
    let name = spec.external_name.as_deref().unwrap_or_default();
    if name.is_empty() {
        faults.push(Fault::error("spec.externalName", "required"));
    } else if !is_dns_subdomain(name.trim_end_matches('.')) {
        faults.push(Fault::error("spec.externalName", format!("{name:?} is not a DNS name")));
    }
    if addresses(spec).next().is_some() {
        faults.push(Fault::error("spec.clusterIP", "may not be set for ExternalName services"));
    }
}

/// What nothing on a node serves: refused if pods or clients would not get what their author expects.
fn unserved(kind: &str, spec: &ServiceSpec, faults: &mut FaultList) {
    let mut refuse = |field: &str, message: &str, remedy: &str| {
        faults.push(Fault::error(format!("spec.{field}"), message).with_remedy(remedy));
    };
    if spec.external_ips.iter().flatten().next().is_some() {
        refuse("externalIPs", "not supported", "use type LoadBalancer: every address of the node is served");
    }
    if spec.load_balancer_source_ranges.iter().flatten().next().is_some() {
        refuse("loadBalancerSourceRanges", "not supported", "filter with the node's firewall");
    }
    if spec.load_balancer_class.as_deref().is_some_and(|class| !class.is_empty()) {
        let message = "not supported: a node has no other load balancers";
        refuse("loadBalancerClass", message, "leave it out: the Service is then served on the node's addresses");
    }
    if spec.external_name.as_deref().is_some_and(|name| !name.is_empty()) && kind != "ExternalName" {
        refuse("externalName", "may only be used when `type` is 'ExternalName'", "type: ExternalName");
    }
    let mut ignored = |field: &str, is_set: bool, why: &str| {
        if is_set {
            faults.push(Fault::warning(format!("spec.{field}"), format!("has no effect on a node: {why}")));
        }
    };
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    ignored("loadBalancerIP", is_set(&spec.load_balancer_ip), "all of its addresses are served");
    let health = spec.health_check_node_port.is_some_and(|port| port != 0);
    ignored("healthCheckNodePort", health, "there is no other node to choose");
}

fn policies(spec: &ServiceSpec, faults: &mut FaultList) {
    let known = [
        ("sessionAffinity", &spec.session_affinity, &["None", "ClientIP"][..]),
        ("externalTrafficPolicy", &spec.external_traffic_policy, &["Cluster", "Local"]),
        ("internalTrafficPolicy", &spec.internal_traffic_policy, &["Cluster", "Local"]),
        ("trafficDistribution", &spec.traffic_distribution, &["PreferClose", "PreferSameZone", "PreferSameNode"]),
    ];
    for (field, value, allowed) in known {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty() && !allowed.contains(value)) {
            one_of(faults, &format!("spec.{field}"), value, &allowed.join(", "));
        }
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(seconds) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else { return };
    if !(1..=MAX_AFFINITY_SECONDS).contains(&seconds) {
        let message = format!("{seconds} must be greater than 0 and at most {MAX_AFFINITY_SECONDS}");
        faults.push(Fault::error("spec.sessionAffinityConfig.clientIP.timeoutSeconds", message));
    }
}
