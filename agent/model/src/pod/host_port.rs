//! The ports of the node that a pod requests (`hostPort`), and which of them two pods cannot both have.
//!
//! As in kubelet, these are the ports of regular containers and sidecars. With `hostNetwork`, every declared port is
//! one by default.

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerPort, PodSpec};

use crate::pod::Role;

/// kubelet's reason for refusing a pod whose ports another one has.
pub const NODE_PORTS: &str = "NodePorts";

/// The address that means every address of the node.
const ANY_ADDRESS: &str = "0.0.0.0";

/// A port of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub number: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The node's address; `0.0.0.0` means all of them.
    pub ip: String,
}

impl HostPort {
    fn from_container(port: &ContainerPort) -> Option<Self> {
        let ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty());
        Some(Self {
            number: port.host_port.filter(|number| *number > 0)?,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            ip: ip.unwrap_or(ANY_ADDRESS).to_owned(),
        })
    }

    /// Whether two pods cannot have these two ports.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let same_address = self.ip == other.ip || self.ip == ANY_ADDRESS || other.ip == ANY_ADDRESS;
        self.number == other.number && self.protocol == other.protocol && same_address
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ip.as_str(), self.ip.contains(':')) {
            (ANY_ADDRESS, _) => {}
            (ip, true) => write!(f, "[{ip}]:")?,
            (ip, false) => write!(f, "{ip}:")?,
        }
        write!(f, "{}/{}", self.number, self.protocol)
    }
}

/// The ports of containers that serve, which are all but init containers that end before the others start.
pub fn served_ports(spec: &PodSpec) -> impl Iterator<Item = &ContainerPort> {
    let inits = spec.init_containers.iter().flatten().filter(|container| Role::of_init(container) == Role::Sidecar);
    spec.containers.iter().chain(inits).flat_map(|container| container.ports.iter().flatten())
}

/// The ports of the node that a pod requests.
pub fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    served_ports(spec).filter_map(HostPort::from_container).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_ports_of_containers_that_serve_count() {
        let spec: PodSpec = serde_json::from_value(json!({
            "initContainers": [
                {"name": "setup", "ports": [{"containerPort": 1, "hostPort": 1}]},
                {"name": "proxy", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 2, "protocol": "UDP"}]},
            ],
            "containers": [
                {"name": "web", "ports": [{"containerPort": 3}, {"containerPort": 4, "hostPort": 40, "hostIP": "10.0.0.1"}]},
                {"name": "bare"},
            ],
        }))
        .unwrap();
        let ports: Vec<String> = host_ports(&spec).iter().map(ToString::to_string).collect();
        assert_eq!(ports, ["10.0.0.1:40/TCP", "2/UDP"]);
    }

    #[test]
    fn two_pods_cannot_have_one_port_at_one_address() {
        let port = |text: &str| {
            let (number, rest) = text.split_once('/').unwrap();
            let (protocol, ip) = rest.split_once('@').unwrap_or((rest, ""));
            let port = json!({"containerPort": 1, "hostPort": number.parse::<i32>().unwrap(), "protocol": protocol, "hostIP": ip});
            HostPort::from_container(&serde_json::from_value(port).unwrap()).unwrap()
        };
        for (first, other, conflict) in [
            ("80/TCP", "80/TCP", true),
            ("80/TCP", "81/TCP", false),
            ("80/TCP", "80/UDP", false),
            ("80/TCP@10.0.0.1", "80/TCP", true),
            ("80/TCP@10.0.0.1", "80/TCP@0.0.0.0", true),
            ("80/TCP@10.0.0.1", "80/TCP@10.0.0.1", true),
            ("80/TCP@10.0.0.1", "80/TCP@10.0.0.2", false),
            ("80/TCP@::1", "80/TCP", true),
        ] {
            assert_eq!(port(first).conflicts_with(&port(other)), conflict, "{first} {other}");
            assert_eq!(port(other).conflicts_with(&port(first)), conflict, "{other} {first}");
        }
        assert_eq!(port("80/TCP@::1").to_string(), "[::1]:80/TCP");
    }
}
