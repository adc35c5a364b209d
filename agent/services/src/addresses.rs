//! Which address, and which ports of the node, each Service has.
//!
//! They derive from the Service's namespace and name, so that they are the same on every start and every node. What was assigned
//! is remembered, for two names may derive the same: then the first one keeps it, also when the other one stays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use limpet_model::object::local_service::{FamilyPolicy, LocalService, Protocol, ServiceKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cidr::Cidr;
use crate::settings::Settings;

/// Namespace and name of a Service.
pub type Name = (String, String);

/// The addresses and ports of one Service, as they are saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// The first one is `clusterIP`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The port of the node for each of its ports, by [`port_key`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_ports: BTreeMap<String, u16>,
}

/// The addresses and ports of all Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Book {
    pub assigned: BTreeMap<Name, Assigned>,
}

/// How a port is named among those of its Service: `TCP/80`.
pub fn port_key(protocol: Protocol, number: u16) -> String {
    format!("{protocol}/{number}")
}

/// The addresses and ports that no other Service can have any more.
#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<IpAddr>,
    ports: BTreeSet<(Protocol, u16)>,
}

impl Book {
    /// Assigns what `services` need and do not have. All others are forgotten, unless they may still come (`keeps_others`). Returns
    /// why some get nothing.
    pub fn assign(
        &mut self,
        settings: &Settings,
        services: &BTreeMap<Name, &LocalService>,
        keeps_others: bool,
    ) -> BTreeMap<Name, String> {
        let before = std::mem::take(&mut self.assigned);
        let mut taken = Taken::default();
        taken.addresses.extend(&settings.name_servers);
        let others = before.iter().filter(|(name, _)| keeps_others && !services.contains_key(*name));
        for (name, assigned) in others {
            taken.addresses.extend(&assigned.addresses);
            let numbers = |protocol: Protocol| {
                let prefix = format!("{protocol}/");
                let of_protocol = assigned.node_ports.iter().filter(move |(key, _)| key.starts_with(&prefix));
                of_protocol.map(move |(_, number)| (protocol, *number))
            };
            taken.ports.extend(numbers(Protocol::Tcp).chain(numbers(Protocol::Udp)));
            self.assigned.insert(name.clone(), assigned.clone());
        }
        let (mut faults, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for (name, service) in services {
            match Wanted::new(settings, service) {
                Ok(needs) => drop(wanted.insert(name.clone(), needs)),
                Err(fault) => drop(faults.insert(name.clone(), fault)),
            }
        }
        // What a Service has comes first, then what is asked for, then what is derived.
        for (name, needs) in &mut wanted {
            if let Some(had) = before.get(name) {
                needs.keep(settings, had, &mut taken);
            }
        }
        for (name, needs) in &mut wanted {
            if let Err(fault) = needs.take_requested(&mut taken) {
                faults.insert(name.clone(), fault);
            }
        }
        for (name, mut needs) in wanted {
            let derived = match faults.contains_key(&name) {
                true => Ok(()),
                false => needs.derive(settings, &name, &mut taken),
            };
            match derived {
                Err(fault) => drop(faults.insert(name, fault)),
                Ok(()) if faults.contains_key(&name) => {}
                Ok(()) => drop(self.assigned.insert(name, needs.into_assigned())),
            }
        }
        faults
    }
}

/// What one Service needs, and has of it so far.
struct Wanted {
    /// For each family its range, and the address that is asked for.
    addresses: Vec<(Cidr, Option<IpAddr>, Option<IpAddr>)>,
    ports: Vec<WantedPort>,
}

struct WantedPort {
    key: String,
    protocol: Protocol,
    requested: Option<u16>,
    assigned: Option<u16>,
}

impl Wanted {
    fn new(settings: &Settings, service: &LocalService) -> Result<Self, String> {
        let mut addresses = Vec::new();
        if service.kind.has_address() {
            for range in families(&settings.ranges, service)? {
                let requested = service.addresses.iter().find(|address| address.is_ipv4() == range.is_ipv4());
                if let Some(address) = requested.filter(|address| !range.contains(**address)) {
                    return Err(format!(
                        "clusterIP {address}: the provided IP is not in the valid range, which is {range}"
                    ));
                }
                addresses.push((range, requested.copied(), None));
            }
        }
        let needs_ports = matches!(service.kind, ServiceKind::NodePort | ServiceKind::LoadBalancer);
        let mut ports = Vec::new();
        for port in service.ports.iter().filter(|_| needs_ports) {
            if let Some(number) = port.node_port.filter(|number| !settings.node_ports.contains(number)) {
                let (first, last) = settings.node_ports.clone().into_inner();
                return Err(format!(
                    "nodePort {number}: the provided port is not in the valid range, which is {first}-{last}"
                ));
            }
            let (protocol, key) = (port.protocol, port_key(port.protocol, port.number));
            ports.push(WantedPort { key, protocol, requested: port.node_port, assigned: None });
            if service.kind == ServiceKind::LoadBalancer {
                let key = balanced_key(port.protocol, port.number);
                ports.push(WantedPort { key, protocol, requested: Some(port.number), assigned: None });
            }
        }
        Ok(Self { addresses, ports })
    }

    /// Keeps what it had, as far as that is still right and free.
    fn keep(&mut self, settings: &Settings, had: &Assigned, taken: &mut Taken) {
        for (range, requested, assigned) in &mut self.addresses {
            let fits = |address: &&IpAddr| {
                range.contains(**address) && requested.is_none_or(|requested| requested == **address)
            };
            let kept = had.addresses.iter().find(fits).filter(|address| taken.addresses.insert(**address));
            *assigned = kept.copied();
        }
        for port in &mut self.ports {
            let fits = |number: &&u16| match port.requested {
                Some(wish) => wish == **number,
                None => settings.node_ports.contains(*number),
            };
            let number = had.node_ports.get(&port.key).filter(fits);
            port.assigned = number.copied().filter(|number| taken.ports.insert((port.protocol, *number)));
        }
    }

    fn take_requested(&mut self, taken: &mut Taken) -> Result<(), String> {
        for (_, requested, assigned) in &mut self.addresses {
            let Some(address) = requested.filter(|_| assigned.is_none()) else { continue };
            if !taken.addresses.insert(address) {
                return Err(format!("clusterIP {address}: the provided IP is already allocated"));
            }
            *assigned = Some(address);
        }
        for port in &mut self.ports {
            let Some(number) = port.requested.filter(|_| port.assigned.is_none()) else { continue };
            if !taken.ports.insert((port.protocol, number)) {
                let protocol = port.protocol;
                return Err(format!("port {number} ({protocol}) of the node: the provided port is already allocated"));
            }
            port.assigned = Some(number);
        }
        Ok(())
    }

    fn derive(&mut self, settings: &Settings, name: &Name, taken: &mut Taken) -> Result<(), String> {
        for (range, _, assigned) in self.addresses.iter_mut().filter(|(.., assigned)| assigned.is_none()) {
            let size = range.size();
            let place = probe(&format!("{}/{}", name.0, name.1), (1, size - 1), (size / 16).clamp(16, 256));
            let free = place.map(|offset| range.at(offset)).find(|address| taken.addresses.insert(*address));
            *assigned = Some(free.ok_or_else(|| format!("all addresses of {range} are allocated"))?);
        }
        let (first, last) = (u32::from(*settings.node_ports.start()), u32::from(*settings.node_ports.end()));
        for port in self.ports.iter_mut().filter(|port| port.assigned.is_none()) {
            let low = ((last - first) / 32).clamp(16, 128);
            let place = probe(&format!("{}/{}/{}", name.0, name.1, port.key), (first, last + 1), low);
            let mut numbers = place.filter_map(|number| u16::try_from(number).ok());
            let free = numbers.find(|number| taken.ports.insert((port.protocol, *number)));
            port.assigned = Some(free.ok_or_else(|| format!("all node ports {first}-{last} are allocated"))?);
        }
        Ok(())
    }

    fn into_assigned(self) -> Assigned {
        Assigned {
            addresses: self.addresses.into_iter().filter_map(|(.., assigned)| assigned).collect(),
            node_ports: self.ports.into_iter().filter_map(|port| Some((port.key, port.assigned?))).collect(),
        }
    }
}

/// How the port of a load balancer is named among those of its Service.
pub fn balanced_key(protocol: Protocol, number: u16) -> String {
    format!("{protocol}/{number}/balanced")
}

/// The ranges of the families of a Service, the first one's first.
///
/// # Errors
/// A family has no range.
pub fn families(ranges: &[Cidr], service: &LocalService) -> Result<Vec<Cidr>, String> {
    let asked = service.families.named.iter().copied();
    let of_addresses = service.addresses.iter().map(IpAddr::is_ipv4);
    let mut order: Vec<bool> = Vec::new();
    for family in asked.chain(of_addresses) {
        if !order.contains(&family) {
            order.push(family);
        }
    }
    let count = match service.families.policy {
        FamilyPolicy::SingleStack => order.len().max(1),
        FamilyPolicy::PreferDualStack => 2.min(ranges.len().max(order.len())),
        FamilyPolicy::RequireDualStack => 2,
    };
    for range in ranges {
        if !order.contains(&range.is_ipv4()) {
            order.push(range.is_ipv4());
        }
    }
    let range = |is_ipv4: &bool| {
        let family = if *is_ipv4 { "IPv4" } else { "IPv6" };
        let range = ranges.iter().find(|range| range.is_ipv4() == *is_ipv4).copied();
        range.ok_or_else(|| format!("{family} is not configured: add a range to services.clusterIPRanges"))
    };
    if order.len() < count {
        return Err("ipFamilyPolicy RequireDualStack: services.clusterIPRanges has one family".to_owned());
    }
    order.iter().take(count).map(range).collect()
}

/// All places from `start` to before `end`, beginning with the one that `text` derives. The first `low` places come last: they are
/// left to those who choose a place themselves, as an apiserver leaves them.
fn probe(text: &str, (start, end): (u32, u32), low: u32) -> impl Iterator<Item = u32> + use<> {
    let low = if end - start > 2 * low { start + low } else { start };
    let count = end - low;
    let first = hash(text) % u64::from(count);
    // Less than `count`, which is a u32.
    let first = u32::try_from(first).unwrap_or(0);
    (0..count).map(move |step| low + (first + step) % count).chain(start..low)
}

/// A number that derives from a text.
pub(crate) fn hash(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
