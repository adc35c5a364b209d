//! The names of Services and their pods, as Kubernetes' specification of DNS has them. Pure.
//!
//! `<service>.<namespace>.svc.<domain>`, below it `<host name>` of each pod and `_<port>._<protocol>`, and
//! `<address with dashes>.<namespace>.pod.<domain>`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use limpet_model::object::local_service::ServiceKind;

use crate::cidr::Cidr;
use crate::membership::{Member, ServedService};
use crate::settings::Settings;

const REVERSE_V4: &str = ".in-addr.arpa";
const REVERSE_V6: &str = ".ip6.arpa";

/// The names of all Services and their pods at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    /// The domain, in lower case.
    pub domain: String,
    ranges: Vec<Cidr>,
    /// The names below each Service, by `<service>.<namespace>`.
    services: BTreeMap<String, Entry>,
    namespaces: BTreeSet<String>,
    /// The names that reverse lookups find, by address.
    reverse: BTreeMap<IpAddr, BTreeSet<String>>,
}

/// What a name stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    pub addresses: Vec<IpAddr>,
    /// Ports, each with the name of its machine.
    pub services: Vec<(u16, String)>,
    /// The names of an address.
    pub names: Vec<String>,
    /// It is another name for this one.
    pub alias: Option<String>,
}

/// The answer to a query for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It is no name of Services: others know it.
    Outside,
    /// There is no such name.
    Missing,
    /// There is, and it has these records, of which there may be none.
    Found(Records),
}

/// A Service below its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    records: Records,
    /// The addresses of its pods, by their host names.
    hosts: BTreeMap<String, Vec<IpAddr>>,
    /// The records of named ports, by `_<port>._<protocol>`.
    ports: BTreeMap<String, Vec<(u16, String)>>,
}

impl Zone {
    /// The names of these Services.
    pub fn new(settings: &Settings, services: &[ServedService]) -> Self {
        let mut zone = Self { domain: settings.domain.clone(), ranges: settings.ranges.clone(), ..Self::default() };
        for service in services.iter().filter(|service| service.fault.is_none()) {
            zone.add(service);
        }
        zone
    }

    fn add(&mut self, service: &ServedService) {
        let (namespace, name) = (&*service.key.namespace, &*service.key.name);
        let key = format!("{name}.{namespace}");
        let full = format!("{key}.svc.{}", self.domain);
        let mut entry = Entry::default();
        match &service.definition.kind {
            ServiceKind::ExternalName(target) => entry.records.alias = Some(target.to_lowercase()),
            ServiceKind::Headless => self.add_headless(service, &full, &mut entry),
            ServiceKind::ClusterIp | ServiceKind::NodePort | ServiceKind::LoadBalancer => {
                entry.records.addresses.clone_from(&service.addresses);
                for port in &service.ports {
                    entry.records.services.push((port.number, full.clone()));
                    entry.port(&port.name, port.protocol.as_str(), (port.number, full.clone()));
                }
                for address in &service.addresses {
                    self.reverse.entry(*address).or_default().insert(full.clone());
                }
                // CoreDNS knows the pods of each Service by their host names, and people use that.
                for member in &service.members {
                    entry.hosts.entry(host_name(member)).or_default().extend(&member.addresses);
                }
            }
        }
        self.namespaces.insert(namespace.to_owned());
        self.services.insert(key, entry);
    }

    fn add_headless(&mut self, service: &ServedService, full: &str, entry: &mut Entry) {
        for member in &service.members {
            entry.records.addresses.extend(&member.addresses);
            let host = host_name(member);
            let machine = format!("{host}.{full}");
            entry.hosts.entry(host).or_default().extend(&member.addresses);
            for address in &member.addresses {
                self.reverse.entry(*address).or_default().insert(machine.clone());
            }
            for (index, port) in service.ports.iter().enumerate() {
                let Some(number) = member.port(index) else { continue };
                entry.records.services.push((number, machine.clone()));
                entry.port(&port.name, port.protocol.as_str(), (number, machine.clone()));
            }
        }
    }

    /// What is known of a name, which is in lower case and has no dot at its end.
    pub fn lookup(&self, name: &str) -> Lookup {
        if let Some(address) = reverse_address(name) {
            return match self.reverse.get(&address) {
                Some(names) => Lookup::Found(Records { names: names.iter().cloned().collect(), ..Records::default() }),
                None if self.ranges.iter().any(|range| range.contains(address)) => Lookup::Missing,
                None => Lookup::Outside,
            };
        }
        if name == self.domain {
            return Lookup::Found(Records::default());
        }
        match name.strip_suffix(&self.domain).and_then(|rest| rest.strip_suffix('.')) {
            Some(rest) => self.within(rest),
            None => Lookup::Outside,
        }
    }

    fn within(&self, rest: &str) -> Lookup {
        let mut labels: Vec<&str> = rest.split('.').collect();
        let records = match (labels.pop(), labels.pop()) {
            (Some("svc" | "pod"), None) => Some(Records::default()),
            (Some("svc"), Some(namespace)) => self.of_service(namespace, &labels),
            (Some("pod"), Some(_)) => match *labels {
                [] => Some(Records::default()),
                [address] => dashed(address).map(|address| Records { addresses: vec![address], ..Records::default() }),
                _ => None,
            },
            _ => None,
        };
        records.map_or(Lookup::Missing, Lookup::Found)
    }

    fn of_service(&self, namespace: &str, labels: &[&str]) -> Option<Records> {
        let [below @ .., name] = labels else {
            return self.namespaces.contains(namespace).then(Records::default);
        };
        let entry = self.services.get(&format!("{name}.{namespace}"))?;
        match below {
            [] => Some(entry.records.clone()),
            [protocol] if protocol.starts_with('_') => {
                let is_there = entry.ports.keys().any(|port| port.ends_with(&format!(".{protocol}")));
                is_there.then(Records::default)
            }
            [host] => {
                entry.hosts.get(*host).map(|addresses| Records { addresses: addresses.clone(), ..Records::default() })
            }
            [port, protocol] => {
                let services = entry.ports.get(&format!("{port}.{protocol}"))?;
                Some(Records { services: services.clone(), ..Records::default() })
            }
            _ => None,
        }
    }
}

impl Entry {
    fn port(&mut self, name: &str, protocol: &str, target: (u16, String)) {
        if !name.is_empty() {
            let key = format!("_{name}._{}", protocol.to_lowercase());
            self.ports.entry(key).or_default().push(target);
        }
    }
}

/// The host name of a pod below its Service: its own, or its address.
fn host_name(member: &Member) -> String {
    let address = || member.addresses.first().map(|address| address.to_string().replace(['.', ':'], "-"));
    member.hostname.as_deref().map(str::to_lowercase).or_else(address).unwrap_or_default()
}

fn dashed(label: &str) -> Option<IpAddr> {
    let v4 = label.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::V4);
    v4.or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6)).ok()
}

/// The address of a name for reverse lookups.
fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(REVERSE_V4) {
        let mut parts: Vec<&str> = digits.split('.').collect();
        parts.reverse();
        return parts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let digits: Vec<&str> = name.strip_suffix(REVERSE_V6)?.split('.').collect();
    let is_whole = digits.len() == 32 && digits.iter().all(|digit| digit.len() == 1);
    let number = is_whole.then(|| digits.into_iter().rev().collect::<String>())?;
    u128::from_str_radix(&number, 16).ok().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::membership::tests::{definition, named, pod, pods, served};
    use crate::settings::tests::settings;

    /// The names of a Service `web`, a headless one `db` with the pod `db-0` and another one, and an alias `mail`.
    pub(crate) fn zone() -> Zone {
        let set = json!({"hostname": "db-0", "subdomain": "db"});
        let all = pods([pod("a", "10.1.0.2", true, set), pod("b", "10.1.0.3", true, json!({}))]);
        let definitions = [
            definition(json!({"clusterIP": "10.43.0.9"})),
            named("db", json!({"clusterIP": "None"})),
            named("mail", json!({"type": "ExternalName", "externalName": "mail.example.com", "ports": []})),
        ];
        Zone::new(&settings(), &served(&definitions, &all))
    }

    fn records(name: &str) -> Records {
        match zone().lookup(name) {
            Lookup::Found(records) => records,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn addresses(name: &str) -> Vec<String> {
        records(name).addresses.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn services_and_their_pods_have_names() {
        assert_eq!(addresses("web.shop.svc.cluster.local"), ["10.43.0.9"]);
        assert_eq!(addresses("db.shop.svc.cluster.local"), ["10.1.0.2", "10.1.0.3"]);
        assert_eq!(addresses("db-0.db.shop.svc.cluster.local"), ["10.1.0.2"]);
        assert_eq!(addresses("10-1-0-3.db.shop.svc.cluster.local"), ["10.1.0.3"]);
        assert_eq!(addresses("10-1-0-3.web.shop.svc.cluster.local"), ["10.1.0.3"], "also of one with an address");
        assert_eq!(addresses("10-1-0-7.shop.pod.cluster.local"), ["10.1.0.7"]);
        assert_eq!(records("mail.shop.svc.cluster.local").alias.as_deref(), Some("mail.example.com"));
    }

    #[test]
    fn ports_have_names_with_the_machines_they_are_of() {
        let services = |name: &str| records(name).services;
        let web = "web.shop.svc.cluster.local";
        assert_eq!(services(&format!("_http._tcp.{web}")), [(80, web.to_owned())]);
        let db = "db.shop.svc.cluster.local";
        let expected = [(8080, format!("db-0.{db}")), (8080, format!("10-1-0-3.{db}"))];
        assert_eq!(services(&format!("_http._tcp.{db}")), expected);
        assert_eq!(services(db), expected);
        assert_eq!(zone().lookup(&format!("_http._udp.{web}")), Lookup::Missing);
    }

    #[test]
    fn addresses_have_names() {
        let names = |name: &str| records(name).names;
        assert_eq!(names("9.0.43.10.in-addr.arpa"), ["web.shop.svc.cluster.local"]);
        assert_eq!(names("2.0.1.10.in-addr.arpa"), ["db-0.db.shop.svc.cluster.local"]);
        assert_eq!(zone().lookup("8.0.43.10.in-addr.arpa"), Lookup::Missing, "in the range of Services");
        assert_eq!(zone().lookup("8.0.1.10.in-addr.arpa"), Lookup::Outside);
        let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.0.0.0.0.d.f.ip6.arpa";
        assert_eq!(reverse_address(six), Some("fd00:43::1".parse().unwrap()));
        assert_eq!(zone().lookup(six), Lookup::Missing);
    }

    #[test]
    fn names_between_the_domain_and_a_service_exist_and_others_do_not() {
        for name in [
            "cluster.local",
            "svc.cluster.local",
            "shop.svc.cluster.local",
            "pod.cluster.local",
            "_tcp.web.shop.svc.cluster.local",
        ] {
            assert_eq!(records(name), Records::default(), "{name}");
        }
        for name in [
            "x.svc.cluster.local",
            "x.shop.svc.cluster.local",
            "x.web.shop.svc.cluster.local",
            "a.b.c.web.shop.svc.cluster.local",
            "x.cluster.local",
        ] {
            assert_eq!(zone().lookup(name), Lookup::Missing, "{name}");
        }
        for name in ["example.com", "notcluster.local", "web", "local", ""] {
            assert_eq!(zone().lookup(name), Lookup::Outside, "{name}");
        }
    }
}
