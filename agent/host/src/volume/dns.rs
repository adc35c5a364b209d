//! `/etc/resolv.conf` of a pod, by `dnsPolicy` and `dnsConfig`. Pure.
//!
//! kubelet's rules (pkg/kubelet/network/dns): `Default` and host-network pods with `ClusterFirst` take the node's
//! resolver; `ClusterFirst` and `ClusterFirstWithHostNet` take `clusterDNS`, the cluster's search domains before
//! the node's and `ndots:5`, and fall back to `Default` with a warning when no `clusterDNS` is configured; `None`
//! starts empty. `dnsConfig` is merged into the result, which is then cut to the limits of resolvers: 3 nameservers, 32
//! search domains of 2,048 characters together. The file has containerd's format.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodDNSConfigOption};

use tokio::sync::watch;

use super::Warning;
use limpet_model::pod::PodRecord;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
/// glibc 2.28 aborts on a longer one.
const MAX_SEARCH_LENGTH: usize = 253;

/// The content of a resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolver {
    /// The name servers' addresses.
    pub nameservers: Vec<String>,
    /// The search domains.
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// The cluster's DNS configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterDns {
    /// Their addresses.
    pub nameservers: Vec<IpAddr>,
    /// Its domain; may be empty.
    pub domain: String,
}

/// The name servers of the node's own Services, which pods have unless `clusterDNS` names others. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LocalDns(Arc<watch::Sender<Option<ClusterDns>>>);

impl LocalDns {
    /// From now on pods have these; `None`: there are none.
    pub fn set(&self, dns: Option<ClusterDns>) {
        self.0.send_if_modified(|known| {
            let differs = *known != dns;
            *known = dns;
            differs
        });
    }

    /// Those that pods have, if `configured` names none.
    pub(super) fn or_configured(&self, configured: &ClusterDns) -> ClusterDns {
        let local = self.0.borrow().clone().filter(|_| configured.nameservers.is_empty());
        local.unwrap_or_else(|| configured.clone())
    }

    pub(super) fn changes(&self) -> watch::Receiver<Option<ClusterDns>> {
        self.0.subscribe()
    }
}

/// The pod's DNS settings, owned so that they can be sent to another thread.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DnsRequest {
    pub pod: String,
    pub namespace: String,
    pub policy: Option<String>,
    pub host_network: bool,
    pub config: Option<PodDNSConfig>,
}

impl DnsRequest {
    pub(super) fn new(pod: &PodRecord) -> Self {
        Self {
            pod: pod.key.to_string(),
            namespace: pod.key.namespace().to_owned(),
            policy: pod.spec().dns_policy.clone(),
            host_network: pod.host_network(),
            config: pod.spec().dns_config.clone(),
        }
    }
}

impl Resolver {
    /// Parses a resolv.conf: the last `search` line counts, a later option replaces an earlier one of the same name,
    /// and everything else is ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") => resolver.nameservers.extend(fields.next().map(str::to_owned)),
                Some("search") => {
                    // The root domain, which systemd-resolved writes, would cost an additional query for each name.
                    let domains = fields.filter(|name| *name != ".");
                    resolver.searches = domains.map(|name| name.strip_suffix('.').unwrap_or(name).to_owned()).collect();
                }
                Some("options") => merge_options(&mut resolver.options, fields.map(str::to_owned)),
                _ => {}
            }
        }
        resolver
    }

    /// The file's text; empty when nothing is set.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            text += &format!("search {}\n", self.searches.join(" "));
        }
        for nameserver in &self.nameservers {
            text += &format!("nameserver {nameserver}\n");
        }
        if !self.options.is_empty() {
            text += &format!("options {}\n", self.options.join(" "));
        }
        text
    }
}

/// The pod's resolver. `node` is the content of the node's file; `None` if `resolvConf` is empty, which disables
/// lookups.
pub(super) fn resolve(pod: &DnsRequest, node: Option<&Resolver>, cluster: &ClusterDns) -> (Resolver, Vec<Warning>) {
    let mut warnings = Vec::new();
    let from_cluster = match pod.policy.as_deref() {
        Some("Default" | "None") => false,
        Some("ClusterFirstWithHostNet") => true,
        _ => !pod.host_network,
    };
    let mut resolver = if pod.policy.as_deref() == Some("None") {
        Resolver::default()
    } else if from_cluster && !cluster.nameservers.is_empty() {
        from_cluster_dns(pod, node, cluster)
    } else {
        if from_cluster {
            warnings.push(Warning {
                reason: "MissingClusterDNS",
                message: format!(
                    "pod: {:?}. limpet does not have ClusterDNS IP configured and cannot create Pod using \
                     \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
                    pod.pod
                ),
            });
        }
        node.cloned().unwrap_or_else(no_lookups)
    };
    if let Some(config) = &pod.config {
        append(&mut resolver, config);
    }
    fit(&mut resolver, &mut warnings);
    if !pod.host_network && node.is_some() {
        warn_of_loopback(&resolver, &mut warnings);
    }
    (resolver, warnings)
}

fn from_cluster_dns(pod: &DnsRequest, node: Option<&Resolver>, cluster: &ClusterDns) -> Resolver {
    let mut searches = Vec::new();
    if !cluster.domain.is_empty() {
        let domain = &cluster.domain;
        searches = vec![format!("{}.svc.{domain}", pod.namespace), format!("svc.{domain}"), domain.clone()];
    }
    searches.extend(node.iter().flat_map(|node| node.searches.iter().cloned()));
    Resolver {
        nameservers: cluster.nameservers.iter().map(IpAddr::to_string).collect(),
        searches: without_repeats(searches),
        options: vec!["ndots:5".to_owned()],
    }
}

/// A resolver without lookups: an empty file would make resolvers use their defaults.
fn no_lookups() -> Resolver {
    Resolver { nameservers: vec!["127.0.0.1".to_owned()], searches: vec![".".to_owned()], options: Vec::new() }
}

fn append(resolver: &mut Resolver, config: &PodDNSConfig) {
    let joined = |list: &mut Vec<String>, more: &Option<Vec<String>>| {
        list.extend(more.iter().flatten().cloned());
        *list = without_repeats(std::mem::take(list));
    };
    joined(&mut resolver.nameservers, &config.nameservers);
    joined(&mut resolver.searches, &config.searches);
    let option = |option: &PodDNSConfigOption| {
        let name = option.name.as_deref().unwrap_or_default();
        match option.value.as_deref() {
            None | Some("") => name.to_owned(),
            Some(value) => format!("{name}:{value}"),
        }
    };
    merge_options(&mut resolver.options, config.options.iter().flatten().map(option));
}

fn merge_options(options: &mut Vec<String>, more: impl Iterator<Item = String>) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    for option in more {
        match options.iter_mut().find(|known| name(known) == name(&option)) {
            Some(known) => *known = option,
            None => options.push(option),
        }
    }
}

fn without_repeats(list: Vec<String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(list.len());
    for item in list {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique
}

/// Cuts the lists to the limits of resolvers, with kubelet's warnings.
fn fit(resolver: &mut Resolver, warnings: &mut Vec<Warning>) {
    if resolver.nameservers.len() > MAX_NAMESERVERS {
        resolver.nameservers.truncate(MAX_NAMESERVERS);
        warnings.push(Warning {
            reason: "DNSConfigForming",
            message: format!(
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
                resolver.nameservers.join(" ")
            ),
        });
    }
    let asked = resolver.searches.len();
    resolver.searches.truncate(MAX_SEARCHES);
    resolver.searches.retain(|search| search.len() <= MAX_SEARCH_LENGTH);
    while resolver.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        resolver.searches.pop();
    }
    if resolver.searches.len() < asked {
        warnings.push(Warning {
            reason: "DNSConfigForming",
            message: format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                resolver.searches.join(" ")
            ),
        });
    }
}

/// Warns of a stub resolver on the node's loopback (systemd-resolved, dnsmasq), which pods cannot reach.
fn warn_of_loopback(resolver: &Resolver, warnings: &mut Vec<Warning>) {
    let loopback = |server: &&String| server.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if let Some(server) = resolver.nameservers.iter().find(loopback) {
        warnings.push(Warning {
            reason: "DNSConfigForming",
            message: format!(
                "nameserver {server} is the pod's own loopback address, not the node's, so lookups will fail; set \
                 resolvConf to a file with the real nameservers, such as /run/systemd/resolve/resolv.conf"
            ),
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
