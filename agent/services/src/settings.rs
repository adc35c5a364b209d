//! What the configuration says about Services.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::cidr::Cidr;

/// The place of the name server's address in each range, as most clusters have it.
const NAME_SERVER: u32 = 10;
/// The domain of names if none is configured, as in Kubernetes.
const DOMAIN: &str = "cluster.local";

/// `services` of the LimpetConfiguration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    /// `clusterIPRanges`: where Services have their addresses; at most one range of each family.
    pub ranges: Vec<Cidr>,
    /// The ports of the node that a Service may have: `nodePortRange`.
    pub node_ports: RangeInclusive<u16>,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        // The range of k3s, which no default of CNI plugins overlaps.
        let ranges = "10.43.0.0/16".parse().into_iter().collect();
        Self { ranges, node_ports: 30_000..=32_767 }
    }
}

/// All that Services depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub ranges: Vec<Cidr>,
    pub node_ports: RangeInclusive<u16>,
    /// The domain of all names, in lower case.
    pub domain: String,
    /// The addresses of the name server; none if pods have been given another one.
    pub name_servers: Vec<IpAddr>,
    /// The file with the node's own name servers; `None`: the node has none.
    pub resolv_conf: Option<PathBuf>,
    /// The file in which addresses and ports are remembered.
    pub saved_addresses: PathBuf,
    /// Exists while there are rules in the kernel.
    pub marker: PathBuf,
}

impl Settings {
    /// The settings of a node whose configuration has `clusterDNS` and `clusterDomain`, and these directories. The name servers of
    /// `clusterDNS` that are in a range are limpet's own; if others are configured, limpet has none.
    pub fn new(
        services: ServiceSettings,
        (name_servers, domain): (&[IpAddr], &str),
        resolv_conf: Option<PathBuf>,
        (root_dir, run_dir): (PathBuf, PathBuf),
    ) -> Self {
        let ServiceSettings { ranges, node_ports } = services;
        let is_own = |address: &&IpAddr| ranges.iter().any(|range| range.contains(**address));
        let name_servers = match name_servers {
            [] => ranges.iter().map(|range| range.at(NAME_SERVER)).collect(),
            configured => configured.iter().filter(is_own).copied().collect(),
        };
        let domain = if domain.is_empty() { DOMAIN.to_owned() } else { domain.to_lowercase() };
        let (saved_addresses, marker) = (saved_addresses(&root_dir), run_dir.join("services"));
        Self { ranges, node_ports, domain, name_servers, resolv_conf, saved_addresses, marker }
    }
}

/// The file with what Services have been assigned, for an agent with that persistent directory. It exists while there are some.
pub fn saved_addresses(root_dir: &Path) -> PathBuf {
    root_dir.join("service-addresses.json")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// Settings with a range of each family.
    pub(crate) fn settings() -> Settings {
        let services = ServiceSettings {
            ranges: vec!["10.43.0.0/16".parse().unwrap(), "fd00:43::/112".parse().unwrap()],
            ..ServiceSettings::default()
        };
        Settings::new(services, (&[], ""), None, ("/root".into(), "/run".into()))
    }

    #[test]
    fn the_name_server_is_in_the_range_unless_another_one_is_configured() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(settings().name_servers, [ip("10.43.0.10"), ip("fd00:43::a")]);
        assert_eq!(settings().domain, "cluster.local");
        let with = |server: &str| {
            let directories = ("/root".into(), "/run".into());
            Settings::new(ServiceSettings::default(), (&[ip(server)], "Edge.local"), None, directories)
        };
        assert_eq!(with("10.43.0.53").name_servers, [ip("10.43.0.53")]);
        assert_eq!(with("192.0.2.1").name_servers, [] as [IpAddr; 0]);
        assert_eq!(with("192.0.2.1").domain, "edge.local");
    }
}
