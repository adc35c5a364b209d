//! Kubernetes' rules for names, each as a check that reports the fault and the rule.

use std::net::{IpAddr, Ipv6Addr};

use crate::pod::name::{
    is_config_key, is_dns_label, is_dns_subdomain, is_dns_subdomain_with_underscores, is_env_name, is_label_value,
    is_port_name, is_qualified_name,
};
use crate::pod::validate::field::{At, Faults};

const LABEL_RULE: &str =
    "lower-case letters, digits and -, beginning and ending with a letter or digit, at most 63 characters";
const SUBDOMAIN_RULE: &str =
    "lower-case letters, digits, - and ., beginning and ending with a letter or digit, at most 253 characters";
const LABEL_VALUE_RULE: &str =
    "letters, digits, -, _ and ., beginning and ending with a letter or digit, at most 63 characters";
const KEY_RULE: &str = "an optional domain and /, then a name of letters, digits, -, _ and ., at most 63 characters";
const PORT_RULE: &str = "at most 15 lower-case letters, digits and single -, with at least one letter";

/// Whether a path contains `..` components.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

impl Faults {
    /// A name that must be a DNS label.
    #[cfg_attr(test, track_caller)]
    pub(super) fn dns_label(&mut self, at: &At<'_>, value: &str) {
        if is_dns_label(value) {
            return;
        }
        let detail = if is_dns_subdomain(value) { "must not contain dots" } else { "must be a DNS label" };
        self.malformed(at, value, detail, LABEL_RULE);
    }

    /// The same, and required.
    #[cfg_attr(test, track_caller)]
    pub(super) fn required_dns_label(&mut self, at: &At<'_>, value: &str) {
        match value {
            "" => self.required(at, ""),
            value => self.dns_label(at, value),
        }
    }

    /// A name that must be a DNS subdomain.
    #[cfg_attr(test, track_caller)]
    pub(super) fn dns_subdomain(&mut self, at: &At<'_>, value: &str) {
        if !is_dns_subdomain(value) {
            self.malformed(at, value, "must be a DNS subdomain", SUBDOMAIN_RULE);
        }
    }

    /// The same, and required.
    #[cfg_attr(test, track_caller)]
    pub(super) fn required_dns_subdomain(&mut self, at: &At<'_>, value: &str) {
        match value {
            "" => self.required(at, ""),
            value => self.dns_subdomain(at, value),
        }
    }

    #[cfg_attr(test, track_caller)]
    pub(super) fn search_domain(&mut self, at: &At<'_>, value: &str) {
        let domain = value.strip_suffix('.').unwrap_or(value);
        if value != "." && !is_dns_subdomain_with_underscores(domain) {
            self.malformed(at, domain, "must be a DNS subdomain", SUBDOMAIN_RULE);
        }
    }

    /// A label's or annotation's key, a resource's or condition's name.
    #[cfg_attr(test, track_caller)]
    pub(super) fn qualified_name(&mut self, at: &At<'_>, value: &str) {
        if !is_qualified_name(value) {
            self.malformed(at, value, "must be a qualified name", KEY_RULE);
        }
    }

    /// A label's value.
    #[cfg_attr(test, track_caller)]
    pub(super) fn label_value(&mut self, at: &At<'_>, value: &str) {
        if !is_label_value(value) {
            self.malformed(at, value, "must be a label value", LABEL_VALUE_RULE);
        }
    }

    /// Labels, each fault at its key.
    #[cfg_attr(test, track_caller)]
    pub(super) fn labels<'a>(&mut self, at: &At<'_>, labels: impl IntoIterator<Item = (&'a String, &'a String)>) {
        for (key, value) in labels {
            self.qualified_name(&at.key(key), key);
            self.label_value(&at.key(key), value);
        }
    }

    /// A number that must be a port.
    #[cfg_attr(test, track_caller)]
    pub(super) fn port(&mut self, at: &At<'_>, port: i32) {
        self.in_range(at, i64::from(port), 1, 65535);
    }

    /// A port's name.
    #[cfg_attr(test, track_caller)]
    pub(super) fn port_name(&mut self, at: &At<'_>, value: &str) {
        if !is_port_name(value) {
            self.malformed(at, value, "must be a port name", PORT_RULE);
        }
    }

    /// An environment variable's name.
    #[cfg_attr(test, track_caller)]
    pub(super) fn env_name(&mut self, at: &At<'_>, value: &str) {
        if !is_env_name(value) {
            self.invalid(at, value, "must consist only of printable ASCII characters other than '='");
        }
    }

    /// A key of a ConfigMap or Secret.
    #[cfg_attr(test, track_caller)]
    pub(super) fn config_key(&mut self, at: &At<'_>, value: &str) {
        match value {
            "" => self.required(at, ""),
            value if is_config_key(value) => {}
            value => self.invalid(at, value, "must consist of letters, digits, -, _ and ., and not begin with .."),
        }
    }

    /// An IP address without leading zeros, and not an IPv4 address in IPv6 form.
    #[cfg_attr(test, track_caller)]
    pub(super) fn ip(&mut self, at: &At<'_>, value: &str) {
        match value.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) if is_mapped(address) => {
                self.invalid(at, value, "must not be an IPv4-mapped IPv6 address");
            }
            Ok(_) => {}
            Err(_) => self.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        }
    }

    /// A path that must not contain `..`.
    #[cfg_attr(test, track_caller)]
    pub(super) fn no_backsteps(&mut self, at: &At<'_>, path: &str) {
        if has_backsteps(path) {
            self.invalid(at, path, "must not contain '..'");
        }
    }

    /// A relative path without `..`.
    #[cfg_attr(test, track_caller)]
    pub(super) fn descending_path(&mut self, at: &At<'_>, path: &str) {
        if path.starts_with('/') {
            self.invalid(at, path, "must be a relative path");
        }
        self.no_backsteps(at, path);
    }

    /// A path below a volume's directory, where names that begin with `..` are reserved for atomic updates.
    #[cfg_attr(test, track_caller)]
    pub(super) fn file_in_volume(&mut self, at: &At<'_>, path: &str) {
        self.descending_path(at, path);
        if path.starts_with("..") && !path.starts_with("../") {
            self.invalid(at, path, "must not start with '..'");
        }
    }

    /// A user's or group's number.
    #[cfg_attr(test, track_caller)]
    pub(super) fn id(&mut self, at: &At<'_>, id: Option<i64>) {
        if let Some(id) = id {
            self.in_range(at, id, 0, i64::from(i32::MAX));
        }
    }

    #[cfg_attr(test, track_caller)]
    pub(super) fn file_mode(&mut self, at: &At<'_>, mode: Option<i32>) {
        if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
            self.invalid(at, mode, "must be a number between 0 and 0777 (octal), both inclusive");
        }
    }
}

fn is_mapped(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_some()
}
