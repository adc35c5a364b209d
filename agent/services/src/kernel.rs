//! Has the kernel serve Services: rules, the node's own network, and connections that lead nowhere any more.
//!
//! All calls block for a moment at most, and are made on the blocking pool.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use limpet_host::blocking::{self, DEADLINE};

use crate::conntrack;
use crate::local_network;
use crate::netlink::Socket;
use crate::nftables::{self, BridgeTraffic, TABLE};
use crate::rules::Ruleset;
use crate::settings::Settings;

/// Why the kernel does not serve Services.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// It has no `nf_tables`, or lacks a part of it.
    #[error("the kernel lacks nf_tables, or a part of it that Services need: {0}")]
    Unsupported(#[source] io::Error),
    #[error("cannot replace the rules of Services: {0}")]
    Rules(#[source] io::Error),
    #[error("cannot set up the addresses of Services on loopback: {0}")]
    Network(#[source] io::Error),
    /// Another program does the same.
    #[error("kube-proxy serves Services on this node: limpet does not")]
    KubeProxy,
    /// A network of the node has addresses of Services.
    #[error("{1} of {0} is in a range of Services: set services.clusterIPRanges to one that no network here has")]
    Overlap(String, IpAddr),
    #[error("the kernel does not answer: {0}")]
    Hangs(#[source] io::Error),
}

/// Whether rules are in effect; `None` if the kernel does not say.
pub(crate) async fn has_rules() -> Option<bool> {
    let find = |_: &blocking::Progress| exists(&nftables::table_request(false, TABLE));
    blocking::run("/proc/net/netfilter".into(), DEADLINE, find).await.ok()?.ok()
}

/// Whether the kernel can serve Services at all, and if it passes traffic within bridges by rules.
///
/// # Errors
/// Why it cannot.
pub async fn examine() -> Result<bool, KernelError> {
    let find = |_: &blocking::Progress| exists(&nftables::table_request(false, TABLE));
    let examined = blocking::run("/proc/net/netfilter".into(), DEADLINE, find).await;
    examined.map_err(KernelError::Hangs)?.map_err(KernelError::Unsupported)?;
    Ok(local_network::can_filter_bridges())
}

/// Replaces the rules, and forgets the UDP connections that lead elsewhere (`ends_udp`).
///
/// # Errors
/// The rules before stay.
pub(crate) async fn apply(settings: &Settings, rules: Ruleset, ends_udp: bool) -> Result<(), KernelError> {
    let settings = settings.clone();
    let work = move |_: &blocking::Progress| {
        check(&settings)?;
        fs::write(&settings.marker, "").map_err(KernelError::Network)?;
        let bridges = local_network::prepare(&settings.name_servers, &settings.ranges).map_err(KernelError::Network)?;
        replace(&rules, bridges)?;
        if ends_udp {
            match conntrack::forget_others(&rules.udp()) {
                Ok(0) => {}
                Ok(count) => tracing::debug!(count, "connections by UDP to endpoints that have gone were ended"),
                Err(error) => tracing::warn!(%error, "connections by UDP to endpoints that have gone cannot be ended"),
            }
        }
        Ok(())
    };
    blocking::run("/proc/net/netfilter".into(), DEADLINE, work)
        .await
        .unwrap_or_else(|hangs| Err(KernelError::Hangs(hangs)))
}

/// Removes everything.
///
/// # Errors
/// Something stays.
pub(crate) async fn clear(settings: &Settings) -> Result<(), KernelError> {
    let settings = settings.clone();
    let work = move |_: &blocking::Progress| {
        let rules = Socket::netfilter().and_then(|socket| socket.perform(&nftables::removal()));
        rules.map_err(KernelError::Rules)?;
        local_network::clear(&settings.name_servers, &settings.ranges).map_err(KernelError::Network)?;
        forget(&settings.marker).map_err(KernelError::Network)
    };
    blocking::run("/proc/net/netfilter".into(), DEADLINE, work)
        .await
        .unwrap_or_else(|hangs| Err(KernelError::Hangs(hangs)))
}

fn forget(marker: &Path) -> io::Result<()> {
    match fs::remove_file(marker) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn check(settings: &Settings) -> Result<(), KernelError> {
    // kube-proxy's own table, and its chain as `iptables` writes it.
    for request in [nftables::table_request(true, "kube-proxy"), nftables::chain_request("nat", "KUBE-SERVICES")] {
        if exists(&request).map_err(KernelError::Unsupported)? {
            return Err(KernelError::KubeProxy);
        }
    }
    match local_network::overlap(&settings.ranges).map_err(KernelError::Network)? {
        Some((interface, address)) => Err(KernelError::Overlap(interface, address)),
        None => Ok(()),
    }
}

fn replace(rules: &Ruleset, bridges: BridgeTraffic) -> Result<(), KernelError> {
    let socket = Socket::netfilter().map_err(KernelError::Unsupported)?;
    socket.perform(&nftables::replacement(rules, bridges)).map_err(|error| match error.raw_os_error() {
        // What an expression's missing module, or a family without NAT, is answered with.
        Some(code)
            if code == rustix::io::Errno::NOENT.raw_os_error()
                || code == rustix::io::Errno::OPNOTSUPP.raw_os_error() =>
        {
            KernelError::Unsupported(error)
        }
        _ => KernelError::Rules(error),
    })
}

fn exists(request: &[u8]) -> io::Result<bool> {
    let socket = Socket::netfilter()?;
    let mut is_there = false;
    match socket.read(request, |_| is_there = true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(()) => Ok(is_there),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
