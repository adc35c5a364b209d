//! What the kernel is to do with connections to Services, as values. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use limpet_model::object::local_service::Protocol;

use crate::addresses::hash;
use crate::cidr::Cidr;
use crate::membership::{Endpoint, ServedPort, ServedService};
use crate::settings::Settings;

/// Among how many parts the clients of a Service with affinity are divided.
const PARTS: usize = 256;

/// All rules of Services, which replace those before as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Connections to what is in them and is not passed on are refused.
    pub ranges: Vec<Cidr>,
    /// Addresses in the ranges at which limpet itself listens, so that connections to them are not refused.
    pub name_servers: Vec<IpAddr>,
    pub forwards: Vec<Forward>,
    /// The addresses of pods that may reach themselves through a Service.
    pub looped: BTreeSet<IpAddr>,
    /// The ports of the node whose clients' addresses the pods do not see.
    pub masqueraded: BTreeSet<(Protocol, u16)>,
}

/// Connections of one family to one port of a Service that has endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub protocol: Protocol,
    pub is_ipv4: bool,
    /// The Service's own address and port.
    pub service: Option<(IpAddr, u16)>,
    /// The ports of the node.
    pub node_ports: Vec<u16>,
    pub choice: Choice,
}

/// Where packets to an address and port, or to a port of the node (`None`), are passed on to.
pub type Targets = BTreeMap<(Option<IpAddr>, u16), BTreeSet<(IpAddr, u16)>>;

/// How one of the endpoints is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// By chance, each as often as the others.
    Random(Vec<Endpoint>),
    /// By the client's address: for each part of the clients one of them.
    ByClient(Vec<Endpoint>),
}

impl Choice {
    fn new(endpoints: Vec<Endpoint>, is_sticky: bool) -> Self {
        match is_sticky && endpoints.len() > 1 {
            true => Self::ByClient((0..PARTS).filter_map(|part| highest(&endpoints, part)).collect()),
            false => Self::Random(endpoints),
        }
    }

    /// How many different ones there are.
    pub fn endpoints(&self) -> usize {
        self.places().iter().collect::<BTreeSet<_>>().len()
    }

    /// Those that may be chosen, in the order of the places.
    pub fn places(&self) -> &[Endpoint] {
        match self {
            Self::Random(endpoints) | Self::ByClient(endpoints) => endpoints,
        }
    }
}

/// The endpoint of a part of the clients: by the highest random weight, so that one that is new or gone moves no other clients than
/// its own.
fn highest(endpoints: &[Endpoint], part: usize) -> Option<Endpoint> {
    endpoints.iter().copied().max_by_key(|end| mixed(hash(&format!("{}/{}", end.address, end.port)), part as u64))
}

/// Mixes the bits of both numbers by the finalizer of splitmix64, so that neighbouring parts choose independently.
fn mixed(endpoint: u64, part: u64) -> u64 {
    let mut mixed = endpoint ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Ruleset {
    /// The rules for these Services.
    pub fn new(settings: &Settings, services: &[ServedService]) -> Self {
        let mut rules =
            Self { ranges: settings.ranges.clone(), name_servers: settings.name_servers.clone(), ..Self::default() };
        for service in services.iter().filter(|service| service.fault.is_none()) {
            for port in &service.ports {
                rules.add(service, port);
            }
        }
        rules
    }

    fn add(&mut self, service: &ServedService, port: &ServedPort) {
        if !service.definition.kind.has_address() {
            return;
        }
        let balanced = port.is_balanced.then_some(port.number);
        let node_ports: Vec<u16> = port.node_port.into_iter().chain(balanced).collect();
        if !service.definition.keeps_source {
            self.masqueraded.extend(node_ports.iter().map(|number| (port.protocol, *number)));
        }
        for address in &service.addresses {
            let is_of_family = |end: &&Endpoint| end.address.is_ipv4() == address.is_ipv4();
            let endpoints: Vec<Endpoint> = port.endpoints.iter().filter(is_of_family).copied().collect();
            if endpoints.is_empty() {
                continue;
            }
            self.looped.extend(endpoints.iter().filter(|end| !end.is_of_node).map(|end| end.address));
            self.forwards.push(Forward {
                protocol: port.protocol,
                is_ipv4: address.is_ipv4(),
                service: Some((*address, port.number)),
                node_ports: node_ports.clone(),
                choice: Choice::new(endpoints, service.definition.is_sticky),
            });
        }
    }

    /// Where packets by UDP are passed on to.
    pub fn udp(&self) -> Targets {
        let mut all = BTreeMap::new();
        for forward in self.forwards.iter().filter(|forward| forward.protocol == Protocol::Udp) {
            let ends: BTreeSet<(IpAddr, u16)> =
                forward.choice.places().iter().map(|end| (end.address, end.port)).collect();
            let service = forward.service.map(|(address, port)| (Some(address), port));
            for key in service.into_iter().chain(forward.node_ports.iter().map(|port| (None, *port))) {
                all.entry(key).or_insert_with(BTreeSet::new).extend(ends.iter().copied());
            }
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::membership::tests::{definition, named, pod, pods, served};
    use crate::settings::tests::settings;

    fn rules(definitions: &[crate::membership::Definition], ends: &[&str]) -> Ruleset {
        let all = ends.iter().enumerate().map(|(index, end)| pod(&format!("p{index}"), end, true, json!({})));
        Ruleset::new(&settings(), &served(definitions, &pods(all)))
    }

    #[test]
    fn a_port_with_endpoints_is_passed_on_in_each_family() {
        let both = definition(json!({"type": "NodePort", "ipFamilyPolicy": "PreferDualStack"}));
        let rules = rules(&[both, named("none", json!({"selector": {"app": "x"}}))], &["10.1.0.2", "10.1.0.3"]);
        let families: Vec<bool> = rules.forwards.iter().map(|forward| forward.is_ipv4).collect();
        assert_eq!(families, [true, false], "none for a Service without endpoints");
        let first = &rules.forwards[0];
        assert_eq!((first.choice.places().len(), first.node_ports.len()), (2, 1));
        assert!(matches!(first.choice, Choice::Random(_)));
        assert_eq!(rules.masqueraded.len(), 1);
        assert!(rules.looped.contains(&"10.1.0.2".parse().unwrap()));
    }

    #[test]
    fn clients_keep_their_pod_and_only_those_of_one_that_is_gone_move() {
        let sticky = definition(json!({"sessionAffinity": "ClientIP"}));
        let places = |ends: &[&str]| rules(std::slice::from_ref(&sticky), ends).forwards[0].choice.clone();
        let (Choice::ByClient(three), Choice::ByClient(two)) =
            (places(&["10.1.0.2", "10.1.0.3", "10.1.0.4"]), places(&["10.1.0.2", "10.1.0.4"]))
        else {
            panic!("not by client");
        };
        let gone: IpAddr = "10.1.0.3".parse().unwrap();
        let moved = three.iter().zip(&two).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(before, _)| before.address == gone));
        assert!((60..=110).contains(&moved.count()), "a third of the clients");
        assert!(matches!(places(&["10.1.0.2"]), Choice::Random(_)), "one endpoint needs no choice");
    }

    #[test]
    fn pods_in_the_nodes_network_are_not_masqueraded_and_a_local_policy_keeps_the_source() {
        let local = definition(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
        let on_host = pod("h", "192.0.2.7", true, json!({"hostNetwork": true}));
        let rules = Ruleset::new(&settings(), &served(&[local], &pods([on_host])));
        assert!(rules.looped.is_empty() && rules.masqueraded.is_empty());
        assert_eq!(rules.forwards[0].node_ports[1], 80);
        assert!(rules.udp().is_empty());
    }

    #[test]
    fn udp_is_listed_by_address_and_by_port_of_the_node() {
        let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353, "nodePort": 30053}]);
        let rules = rules(&[definition(json!({"type": "NodePort", "ports": ports}))], &["10.1.0.2"]);
        let udp = rules.udp();
        let keys: Vec<_> = udp.keys().map(|(address, port)| (address.is_some(), *port)).collect();
        assert_eq!(keys, [(false, 30_053), (true, 53)]);
        assert!(udp.values().all(|ends| ends.contains(&("10.1.0.2".parse().unwrap(), 5353))));
    }
}
