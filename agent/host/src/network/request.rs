//! A pod's request to be attached to the network.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::ContainerPort;
use serde::{Deserialize, Serialize};

use limpet_model::pod::bandwidth::{Bandwidth, bandwidth};
use limpet_model::pod::host_port::served_ports;
use limpet_model::pod::{PodRecord, PodUid};

/// A `hostPort`: a port of the node that is forwarded to a container's port, in the form of the `portMappings`
/// capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// The node's port.
    pub host_port: i32,
    /// The pod's port.
    pub container_port: i32,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The node's address it is bound to; empty for all.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

/// The limits of a pod's traffic, in the form of the `bandwidth` capability: bits per second, and burst bits. A rate
/// of zero means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BandwidthLimits {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

impl From<Bandwidth> for BandwidthLimits {
    fn from(wanted: Bandwidth) -> Self {
        // As in containerd, only the rate is limited.
        let burst = |rate: Option<u64>| rate.map_or(0, |_| u64::from(u32::MAX));
        Self {
            ingress_rate: wanted.ingress.unwrap_or(0),
            ingress_burst: burst(wanted.ingress),
            egress_rate: wanted.egress.unwrap_or(0),
            egress_burst: burst(wanted.egress),
        }
    }
}

/// The capability of plugins that receive the pod's resolver.
pub(super) const DNS: &str = "dns";
/// The capability of plugins that receive the pod's annotations.
pub(super) const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The capability of plugins that receive the pod's cgroup.
pub(super) const CGROUP_PATH: &str = "cgroupPath";

/// A pod's resolver, in the form of the `dns` capability.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsSettings {
    /// The name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// The search domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
    /// The options of resolv.conf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A pod to be attached to the network.
#[derive(Debug, Clone)]
pub struct AttachRequest<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub name: &'a str,
    /// The pod's UID; it serves as CNI's container id as well.
    pub uid: &'a PodUid,
    /// The pin of the pod's network namespace.
    pub netns: &'a Path,
    /// The pod's host ports.
    pub ports: Vec<PortMapping>,
    /// The limits of its traffic.
    pub bandwidth: Option<BandwidthLimits>,
    /// Its resolver.
    pub dns: Option<DnsSettings>,
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// Its cgroup, from the root of the hierarchy, as kubelet passes it to a runtime.
    pub cgroup_path: Option<String>,
}

impl<'a> AttachRequest<'a> {
    /// A request for a pod of which nothing else is known.
    pub(super) fn nameless(uid: &'a PodUid, netns: &'a Path) -> Self {
        Self {
            namespace: "",
            name: "",
            uid,
            netns,
            ports: Vec::new(),
            bandwidth: None,
            dns: None,
            annotations: None,
            cgroup_path: None,
        }
    }

    /// The request for `pod`, whose namespace is pinned at `netns`, without its resolver and its cgroup.
    pub fn new(pod: &'a PodRecord, netns: &'a Path) -> Self {
        let mapping = |port: &ContainerPort| {
            Some(PortMapping {
                host_port: port.host_port.filter(|host_port| *host_port > 0)?,
                container_port: port.container_port,
                protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase(),
                host_ip: port.host_ip.clone().unwrap_or_default(),
            })
        };
        Self {
            namespace: pod.key.namespace(),
            name: pod.key.name(),
            uid: &pod.uid,
            netns,
            ports: served_ports(pod.spec()).filter_map(mapping).collect(),
            bandwidth: pod.pod.metadata.annotations.as_ref().and_then(bandwidth).map(BandwidthLimits::from),
            dns: None,
            annotations: pod.pod.metadata.annotations.as_ref(),
            cgroup_path: None,
        }
    }
}
