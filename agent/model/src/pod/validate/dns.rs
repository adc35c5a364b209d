//! Validation of host name, host aliases and DNS configuration.

use k8s_openapi::api::core::v1::PodSpec;

use crate::pod::validate::field::{At, Faults, items, text};

const MAX_HOSTNAME: usize = 64;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LIST: usize = 2048;

/// Validates host name and subdomain.
pub(super) fn hostname(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    for (field, value) in [("hostname", text(&spec.hostname)), ("subdomain", text(&spec.subdomain))] {
        if !value.is_empty() {
            faults.dns_label(&at.field(field), value);
        }
    }
    let Some(name) = spec.hostname_override.as_deref() else { return };
    let at = at.field("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        faults.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        faults.forbidden(&at, "may not be specified when hostNetwork is true");
    }
    if name.len() > MAX_HOSTNAME {
        faults.too_long(&at, MAX_HOSTNAME);
    }
    faults.dns_subdomain(&at, name);
}

/// Validates `hostAliases`.
pub(super) fn host_aliases(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let list = at.field("hostAliases");
    for (index, alias) in items(&spec.host_aliases) {
        let item = list.index(index);
        faults.ip(&item.field("ip"), &alias.ip);
        for (number, name) in items(&alias.hostnames) {
            faults.dns_subdomain(&item.field("hostnames").index(number), name);
        }
    }
}

/// Validates `dnsConfig` against `dnsPolicy`.
pub(super) fn config(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("dnsConfig");
    let none = text(&spec.dns_policy) == "None";
    let Some(config) = &spec.dns_config else {
        if none {
            faults.required(&at, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let at_servers = at.field("nameservers");
    if none && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return faults.required(&at_servers, detail);
    }
    if servers.len() > MAX_NAMESERVERS {
        faults.invalid(&at_servers, servers, &format!("must not have more than {MAX_NAMESERVERS} nameservers"));
    }
    for (index, server) in servers.iter().enumerate() {
        faults.ip(&at_servers.index(index), server);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let at_searches = at.field("searches");
    if searches.len() > MAX_SEARCHES {
        faults.invalid(&at_searches, searches, &format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    if searches.join(" ").len() > MAX_SEARCH_LIST {
        let detail =
            format!("must not have more than {MAX_SEARCH_LIST} characters (including spaces) in the search list");
        faults.invalid(&at_searches, searches, &detail);
    }
    for (index, search) in searches.iter().enumerate() {
        faults.search_domain(&at_searches.index(index), search);
    }
    for (index, option) in items(&config.options) {
        if text(&option.name).is_empty() {
            faults.required(&at.field("options").index(index), "must not be empty");
        }
    }
}
