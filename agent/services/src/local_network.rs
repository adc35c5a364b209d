//! What the node's own network needs beside rules: the name server's addresses, a route to the addresses of Services, and that the
//! kernel also passes rules by traffic within a bridge.
//!
//! Addresses and routes are those of loopback, which every kernel has. The route is for processes of the node: without it, a node
//! without a default route would not even begin to send to a Service.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

use crate::cidr::Cidr;
use crate::netlink::{Attributes, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Socket, message};
use crate::nftables::BridgeTraffic;

// The numbers are those of linux/rtnetlink.h and linux/if_addr.h.
const NEW_ADDRESS: u16 = 20;
const DEL_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const NO_DUPLICATE_DETECTION: u8 = 2;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const MAIN_TABLE: u8 = 254;
const STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
/// The first interface of every network is loopback.
const LOOPBACK: u32 = 1;
const LOOPBACK_NAME: &str = "lo";
/// Whether traffic within a bridge passes by rules, for each family; there is no such file without `br_netfilter`.
const BRIDGE_FILES: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// Adds the addresses and the routes, and lets traffic within bridges pass by rules if the kernel can.
///
/// # Errors
/// The kernel refuses an address or a route.
pub(crate) fn prepare(name_servers: &[IpAddr], ranges: &[Cidr]) -> io::Result<BridgeTraffic> {
    let socket = Socket::route()?;
    for address in name_servers {
        there_already(socket.perform(&address_request(NEW_ADDRESS, NLM_F_CREATE | NLM_F_EXCL, *address)))?;
    }
    for range in ranges {
        there_already(socket.perform(&route_request(NEW_ROUTE, NLM_F_CREATE | NLM_F_EXCL, range)))?;
    }
    Ok(filter_bridges())
}

/// Removes the addresses and the routes.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn clear(name_servers: &[IpAddr], ranges: &[Cidr]) -> io::Result<()> {
    let socket = Socket::route()?;
    let mut outcome = Ok(());
    for range in ranges {
        outcome = outcome.and(gone_already(socket.perform(&route_request(DEL_ROUTE, 0, range))));
    }
    for address in name_servers {
        outcome = outcome.and(gone_already(socket.perform(&address_request(DEL_ADDRESS, 0, *address))));
    }
    outcome
}

/// The interface, and its address, that is in one of the ranges; loopback has limpet's own there.
///
/// # Errors
/// The kernel does not list its addresses.
pub(crate) fn overlap(ranges: &[Cidr]) -> io::Result<Option<(String, IpAddr)>> {
    for listed in getifaddrs()? {
        let address = listed.address.as_ref();
        let v4 = address.and_then(|address| address.as_sockaddr_in()).map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.and_then(|address| address.as_sockaddr_in6()).map(|v6| IpAddr::V6(v6.ip()));
        let Some(address) = v4.or_else(v6) else { continue };
        let is_own = listed.interface_name == LOOPBACK_NAME;
        if !is_own && ranges.iter().any(|range| range.contains(address)) {
            return Ok(Some((listed.interface_name, address)));
        }
    }
    Ok(None)
}

/// Whether traffic within bridges passes by rules, or would as soon as there is a Service.
pub(crate) fn can_filter_bridges() -> bool {
    fs::exists(BRIDGE_FILES[0]).unwrap_or(false)
}

fn filter_bridges() -> BridgeTraffic {
    let [four, six] = BRIDGE_FILES.map(|file| match fs::read_to_string(file) {
        Ok(text) if text.trim() == "1" => Ok(()),
        Ok(_) => fs::write(file, "1"),
        Err(error) => Err(error),
    });
    if let Err(error) = &six {
        tracing::debug!(%error, "traffic by IPv6 within bridges does not pass by rules");
    }
    match four {
        Ok(()) => BridgeTraffic::Filtered,
        Err(error) => {
            tracing::info!(
                %error,
                "traffic within bridges does not pass by rules: pods see the node's address instead of their clients'; \
                 load the kernel module br_netfilter"
            );
            BridgeTraffic::Unfiltered
        }
    }
}

fn there_already(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn gone_already(result: io::Result<()>) -> io::Result<()> {
    let is_gone = |error: &io::Error| {
        let gone = [rustix::io::Errno::ADDRNOTAVAIL, rustix::io::Errno::SRCH, rustix::io::Errno::NOENT];
        gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

fn family(is_ipv4: bool) -> u8 {
    if is_ipv4 { 2 } else { 10 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address_request(kind: u16, flags: u16, address: IpAddr) -> Vec<u8> {
    let bytes = octets(address);
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    let mut fixed = vec![family(address.is_ipv4()), prefix, NO_DUPLICATE_DETECTION, 0];
    fixed.extend(LOOPBACK.to_ne_bytes());
    let mut attributes = Attributes::default();
    attributes.bytes(ADDRESS, &bytes).bytes(LOCAL, &bytes);
    let mut request = Vec::new();
    message(&mut request, (kind, flags | NLM_F_ACK, 1), &fixed, &attributes);
    request
}

fn route_request(kind: u16, flags: u16, range: &Cidr) -> Vec<u8> {
    let family = family(range.is_ipv4());
    let mut fixed = vec![family, range.prefix(), 0, 0, MAIN_TABLE, STATIC, SCOPE_LINK, UNICAST];
    fixed.extend(0u32.to_ne_bytes());
    let mut attributes = Attributes::default();
    attributes.bytes(ROUTE_DESTINATION, &octets(range.base())).bytes(ROUTE_INTERFACE, &LOOPBACK.to_ne_bytes());
    let mut request = Vec::new();
    message(&mut request, (kind, flags | NLM_F_ACK, 1), &fixed, &attributes);
    request
}
