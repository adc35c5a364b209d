//! What one pod has of the node, or asks for. Part of [`super`].

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::pod::device::pod_devices;
use limpet_model::pod::host_port::{HostPort, NODE_PORTS, host_ports};
use limpet_model::pod::requests::Requests;
use limpet_model::pod::{PodKey, PodRecord};

use super::NodeOffer;
use crate::admission::{OUT_OF, Refusal};
use crate::device_plugins::Inventory;

/// What only one pod can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exclusive {
    Port(HostPort),
    /// A device, by its resource's name.
    Device(String),
}

impl Exclusive {
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(port), Self::Port(other)) => port.conflicts_with(other),
            (Self::Device(device), Self::Device(other)) => device == other,
            _ => false,
        }
    }

    /// Whether it is a resource of the node, as kubelet sees it.
    pub(super) fn is_resource(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// It is refused, because `owner` has it.
    pub(super) fn taken(&self, owner: &PodKey) -> Refusal {
        match self {
            Self::Port(port) => Refusal {
                reason: NODE_PORTS.to_owned(),
                message: format!(
                    "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: {port} is \
                     taken by pod {owner}"
                ),
            },
            Self::Device(name) => Refusal {
                reason: format!("{OUT_OF}{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: 1, used: 1, capacity: 1: pod {owner} has it"
                ),
            },
        }
    }
}

/// What one pod has, or asks for.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) record: Arc<PodRecord>,
    pub(super) exclusive: Vec<Exclusive>,
    pub(super) requests: Requests,
    /// How many devices of plugins, by resource.
    pub(super) devices: BTreeMap<String, usize>,
}

impl Assignment {
    /// What the pod asks for.
    pub(super) fn wanted(record: &Arc<PodRecord>, offer: &NodeOffer, plugins: &Inventory) -> Self {
        let spec = record.spec();
        let devices = pod_devices(spec).into_keys().filter(|name| offer.exclusive.contains(*name));
        let ports = host_ports(spec).into_iter().map(Exclusive::Port);
        Self {
            record: Arc::clone(record),
            exclusive: ports.chain(devices.map(|name| Exclusive::Device(name.to_owned()))).collect(),
            requests: Requests::from_spec(spec),
            devices: plugins.pod_wants(record).map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }

    /// What two incarnations of a pod have together.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.exclusive.extend(other.exclusive);
        for (name, count) in other.devices {
            *self.devices.entry(name).or_insert(0) += count;
        }
        Self { requests: self.requests.plus(&other.requests), ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.requests.is_zero() && self.devices.is_empty()
    }

    /// Whether it has more devices of plugins than `before`.
    pub(super) fn has_more_devices(&self, before: &Self) -> bool {
        self.devices.iter().any(|(name, count)| before.devices.get(name).is_none_or(|before| before < count))
    }

    /// Whether it has something that only one can have and that `before` lacks.
    pub(super) fn grows_exclusively(&self, before: &Self) -> bool {
        self.exclusive.iter().any(|part| !before.exclusive.contains(part))
    }

    pub(super) fn requests_more(&self, before: &Self) -> bool {
        !self.requests.clone().without(&before.requests).is_zero()
    }
}

/// What has to be free before a pod gets it; a pod has what it uses already, even if others do too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// It has no slot among the pods yet, and gets one.
    pub(super) slot: bool,
    /// It has not begun: it may run on this node.
    pub(super) node: bool,
    pub(super) exclusive: bool,
    pub(super) requests: bool,
    pub(super) devices: bool,
}
