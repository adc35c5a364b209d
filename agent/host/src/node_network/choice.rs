//! Selects the node's addresses among the machine's, in kubelet's order. Pure.
//!
//! For each family: the address of the node's name; then the global address of the interface of the default route, or
//! of loopback if that interface has none. On a machine without a default route, where kubelet finds none: a global
//! address of a link with hardware. Among several addresses, the kernel's own choice of a source comes first, then
//! permanent ones, not the temporary ones of IPv6's privacy extensions.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use limpet_model::node::NodeAddresses;

/// `RTF_REJECT` of linux/route.h: the route leads nowhere.
const REJECTED: u32 = 0x200;
/// `IFA_F_TEMPORARY`, `IFA_F_DADFAILED`, `IFA_F_DEPRECATED` and `IFA_F_TENTATIVE` of linux/if_addr.h.
const PASSING: u8 = 0x01 | 0x08 | 0x20 | 0x40;
/// `IFA_F_PERMANENT`: the address was configured, not advertised by a router.
const PERMANENT: u8 = 0x80;

const LOOPBACK: &str = "lo";

/// An address of a link that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub interface: String,
    pub ip: IpAddr,
    /// The kernel's flags of an IPv6 address.
    pub flags: u8,
}

impl LocalAddress {
    /// The rank among the addresses of an interface; the kernel's order decides between equal ones.
    fn rank(&self) -> (bool, bool, bool) {
        let IpAddr::V6(v6) = self.ip else { return (false, false, false) };
        (self.flags & PASSING != 0, v6.is_unique_local(), self.flags & PERMANENT == 0)
    }
}

/// The kernel's view of the machine's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LocalNetwork {
    pub addresses: Vec<LocalAddress>,
    /// The interfaces of the default routes of IPv4 and of IPv6, preferred ones first.
    pub default_interfaces: [Vec<String>; 2],
    /// The source addresses that the kernel would use for a distant destination.
    pub sources: Vec<IpAddr>,
    /// The links with hardware, or stacked on such links.
    pub hardware: BTreeSet<String>,
}

/// The node's addresses if none are configured. `preferred` may be `::`, which puts IPv6 first. `named` are the
/// addresses of the node's name.
pub(super) fn choose(preferred: NodeAddresses, named: &[IpAddr], network: &LocalNetwork) -> NodeAddresses {
    let mut families = [false, true];
    if preferred.iter().any(|address| address.is_ipv6()) {
        families.reverse();
    }
    let routed = |v6: bool| network.named(named, v6).or_else(|| network.of_default_route(v6));
    let chosen: NodeAddresses = families.into_iter().filter_map(routed).collect();
    if !chosen.is_empty() || network.default_interfaces.iter().any(|interfaces| !interfaces.is_empty()) {
        return chosen;
    }
    families.into_iter().filter_map(|v6| network.of_hardware(v6)).collect()
}

impl LocalNetwork {
    fn named(&self, named: &[IpAddr], v6: bool) -> Option<IpAddr> {
        let is_ours = |ip: &&IpAddr| self.addresses.iter().any(|local| local.ip == **ip);
        named.iter().filter(|ip| ip.is_ipv6() == v6 && is_global(**ip)).find(is_ours).copied()
    }

    fn of_default_route(&self, v6: bool) -> Option<IpAddr> {
        let interfaces = &self.default_interfaces[usize::from(v6)];
        let loopback = interfaces.first().map(|_| LOOPBACK);
        interfaces.iter().map(String::as_str).chain(loopback).find_map(|interface| self.of_interface(interface, v6))
    }

    fn of_hardware(&self, v6: bool) -> Option<IpAddr> {
        let mut with_hardware = self.addresses.iter().filter(|local| self.hardware.contains(&local.interface));
        with_hardware.find_map(|local| self.of_interface(&local.interface, v6))
    }

    fn of_interface(&self, interface: &str, v6: bool) -> Option<IpAddr> {
        let is_one =
            |local: &&LocalAddress| local.interface == interface && local.ip.is_ipv6() == v6 && is_global(local.ip);
        let is_other = |local: &LocalAddress| !self.sources.contains(&local.ip);
        let best =
            self.addresses.iter().filter(is_one).min_by_key(|local| (local.rank().0, is_other(local), local.rank()));
        best.map(|local| local.ip)
    }
}

/// Whether others may reach the address: it is neither loopback, link-local nor otherwise not a unicast address of a
/// machine.
pub(super) fn is_global(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_multicast() && !address.is_unspecified() && !link_local
}

/// The interfaces of the default routes in `/proc/net/route`, by metric.
pub(super) fn default_interfaces_v4(table: &str) -> Vec<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, _, flags, _, _, metric, mask, ..] = fields[..] else { return None };
        let is_default = [destination, mask].iter().all(|field| u32::from_str_radix(field, 16) == Ok(0));
        is_default.then_some((metric.parse().ok()?, u32::from_str_radix(flags, 16).ok()?, interface.to_owned()))
    };
    by_metric(table.lines().filter_map(route))
}

/// The same in `/proc/net/ipv6_route`.
pub(super) fn default_interfaces_v6(table: &str) -> Vec<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, flags, interface] = fields[..] else { return None };
        let is_default = length == "00" && destination.bytes().all(|digit| digit == b'0');
        let number = |field| u32::from_str_radix(field, 16).ok();
        is_default.then_some((number(metric)?, number(flags)?, interface.to_owned()))
    };
    by_metric(table.lines().filter_map(route))
}

/// The interfaces of routes (metric, flags, interface) that lead somewhere.
fn by_metric(routes: impl Iterator<Item = (u32, u32, String)>) -> Vec<String> {
    let mut routes: Vec<_> = routes.filter(|(_, flags, to)| flags & REJECTED == 0 && to != LOOPBACK).collect();
    routes.sort_by_key(|(metric, ..)| *metric);
    routes.into_iter().map(|(.., interface)| interface).collect()
}

/// The addresses in `/proc/net/if_inet6` with their flags.
pub(super) fn flags_v6(table: &str) -> Vec<(Ipv6Addr, u8)> {
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, flags, _] = fields[..] else { return None };
        let address = u128::from_str_radix(address, 16).ok()?;
        Some((Ipv6Addr::from_bits(address), u8::from_str_radix(flags, 16).ok()?))
    };
    table.lines().filter_map(address).collect()
}

/// The addresses of `name` in a hosts file.
pub(super) fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut fields = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = fields.next()?.parse().ok()?;
        fields.any(|alias| alias.eq_ignore_ascii_case(name)).then_some(address)
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `interface address[!flags]`.
    fn network(addresses: &[&str], routes_v4: &[&str], routes_v6: &[&str], sources: &[&str]) -> LocalNetwork {
        let address = |text: &&str| {
            let (interface, address) = text.split_once(' ').unwrap();
            let (ip, flags) = address.split_once('!').unwrap_or((address, "0"));
            let flags = u8::from_str_radix(flags, 16).unwrap();
            LocalAddress { interface: interface.to_owned(), ip: ip.parse().unwrap(), flags }
        };
        let names = |interfaces: &[&str]| interfaces.iter().map(|name| (*name).to_owned()).collect();
        LocalNetwork {
            addresses: addresses.iter().map(address).collect(),
            default_interfaces: [names(routes_v4), names(routes_v6)],
            sources: sources.iter().map(|ip| ip.parse().unwrap()).collect(),
            hardware: BTreeSet::from(["eth0".to_owned(), "eth1".to_owned()]),
        }
    }

    fn chosen(preferred: NodeAddresses, named: &[&str], network: &LocalNetwork) -> String {
        let named: Vec<IpAddr> = named.iter().map(|ip| ip.parse().unwrap()).collect();
        choose(preferred, &named, network).to_string()
    }

    #[test]
    fn the_name_comes_first_then_the_interface_of_the_default_route_then_hardware() {
        let lan = ["lo 127.0.0.1", "cni0 10.244.0.1", "eth0 169.254.1.1", "eth0 192.168.1.5", "eth1 10.0.0.9"];
        // The addresses of the node's name, the default routes, the kernel's source addresses, and the expected
        // address.
        type Row = (&'static [&'static str], &'static [&'static str], &'static [&'static str], &'static str);
        let table: [Row; 9] = [
            (&[], &["eth0"], &["192.168.1.5"], "192.168.1.5"),
            (&["10.0.0.9"], &["eth0"], &["192.168.1.5"], "10.0.0.9"),
            (&["127.0.1.1", "203.0.113.7"], &["eth0"], &["192.168.1.5"], "192.168.1.5"),
            (&["127.0.1.1", "10.0.0.9"], &["eth0"], &[], "10.0.0.9"),
            // 192.0.2.0/24 leads elsewhere, or nowhere.
            (&[], &["eth0"], &["10.0.0.9"], "192.168.1.5"),
            (&[], &["eth0"], &[], "192.168.1.5"),
            (&[], &["eth1", "eth0"], &[], "10.0.0.9"),
            // No default route.
            (&[], &[], &[], "192.168.1.5"),
            (&[], &["tun0"], &[], ""),
        ];
        for (named, routes, sources, wanted) in table {
            let actual = chosen(NodeAddresses::NONE, named, &network(&lan, routes, &[], sources));
            assert_eq!(actual, wanted, "{named:?} {routes:?} {sources:?}");
        }
        let unnumbered = network(&["lo 127.0.0.1", "lo 198.51.100.3", "eth0 169.254.1.1"], &["eth0"], &[], &[]);
        assert_eq!(chosen(NodeAddresses::NONE, &[], &unnumbered), "198.51.100.3");
        let pods = network(&["lo 127.0.0.1", "cni0 10.244.0.1"], &[], &[], &[]);
        assert_eq!(chosen(NodeAddresses::NONE, &[], &pods), "", "the pods' bridge is not the node's address");
        let two = network(&["eth0 192.168.1.4", "eth0 192.168.1.5"], &["eth0"], &[], &["192.168.1.5"]);
        assert_eq!(chosen(NodeAddresses::NONE, &[], &two), "192.168.1.5", "the route names its source");
    }

    #[test]
    fn of_ipv6_the_address_that_stays_is_taken() {
        let table: [(&[&str], &[&str], &str); 6] = [
            // A temporary address is the kernel's source.
            (&["eth0 2001:db8::a!01", "eth0 2001:db8::b!00", "eth0 fe80::1!80"], &["2001:db8::a"], "2001:db8::b"),
            (&["eth0 2001:db8::a!20", "eth0 2001:db8::b!40", "eth0 2001:db8::c!80"], &[], "2001:db8::c"),
            (&["eth0 fd00::1!80", "eth0 2001:db8::b!00"], &[], "2001:db8::b"),
            (&["eth0 2001:db8::a!00", "eth0 2001:db8::b!80"], &[], "2001:db8::b"),
            (&["eth0 2001:db8::a!00", "eth0 2001:db8::b!80"], &["2001:db8::a"], "2001:db8::a"),
            (&["eth0 2001:db8::a!01"], &[], "2001:db8::a"),
        ];
        for (addresses, sources, wanted) in table {
            let actual = chosen(NodeAddresses::NONE, &[], &network(addresses, &[], &["eth0"], sources));
            assert_eq!(actual, wanted, "{addresses:?} {sources:?}");
        }
        let both = network(&["eth0 192.168.1.5", "eth0 2001:db8::b!80"], &["eth0"], &["eth0"], &[]);
        assert_eq!(chosen(NodeAddresses::NONE, &[], &both), "192.168.1.5,2001:db8::b");
        let any_v6 = NodeAddresses::single(Ipv6Addr::UNSPECIFIED.into());
        assert_eq!(chosen(any_v6, &[], &both), "2001:db8::b,192.168.1.5");
    }

    #[test]
    fn tables_of_the_kernel_are_read() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  wwan0\t00000000\t0101A8C0\t0003\t0\t0\t700\t00000000\t0\t0\t0\n\
                  eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                  wg0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n\
                  *\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_interfaces_v4(v4), ["eth0", "wwan0"]);
        let zero = "00000000000000000000000000000000";
        let v6 = format!(
            "fd000000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth0\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003 eth1\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000064 00000001 00000000 00450003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(default_interfaces_v6(&v6), ["eth0", "eth1"]);
        let inet6 =
            "20010db800000000000000000000000a 02 40 00 01 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n";
        assert_eq!(flags_v6(inet6), [("2001:db8::a".parse().unwrap(), 1), ("fe80::1".parse().unwrap(), 0x80)]);
        let hosts = "# 10.0.0.1 edge1\n127.0.0.1 localhost\n10.0.0.2\tEDGE1.lan Edge1 # edge2\n::1 edge1\nx edge1\n";
        assert_eq!(in_hosts(hosts, "edge1"), ["10.0.0.2".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert!(in_hosts(hosts, "edge2").is_empty());
        assert!(default_interfaces_v4("").is_empty() && default_interfaces_v6("x y").is_empty());
    }
}
