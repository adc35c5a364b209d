//! Kubernetes' rules for names: for each a predicate, and a check that reports the fault and the rule.

use std::net::{IpAddr, Ipv6Addr};

use crate::pod::validate::field::{At, Faults};

const LABEL_RULE: &str =
    "lower-case letters, digits and -, beginning and ending with a letter or digit, at most 63 characters";
const SUBDOMAIN_RULE: &str =
    "lower-case letters, digits, - and ., beginning and ending with a letter or digit, at most 253 characters";
const LABEL_VALUE_RULE: &str =
    "letters, digits, -, _ and ., beginning and ending with a letter or digit, at most 63 characters";
const KEY_RULE: &str = "an optional domain and /, then a name of letters, digits, -, _ and ., at most 63 characters";
const PORT_RULE: &str = "at most 15 lower-case letters, digits and single -, with at least one letter";

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether `text` is made of bytes that are `inner`, its first and last one `outer`; empty is not.
fn framed(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| inner(*byte))
        && bytes.first().is_some_and(|byte| outer(*byte))
        && bytes.last().is_some_and(|byte| outer(*byte))
}

fn is_lower_label(text: &str) -> bool {
    framed(text, is_lower, |byte| is_lower(byte) || byte == b'-')
}

/// RFC 1123 label.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_lower_label(text)
}

/// RFC 1123 subdomain with Kubernetes' rules: only the total length is limited.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_lower_label)
}

/// The same with `_` allowed, as in service records.
fn is_dns_subdomain_with_underscores(text: &str) -> bool {
    let label = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label);
        framed(rest, is_lower, |byte| is_lower(byte) || byte == b'-' || byte == b'_')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn is_plain_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.len() <= 63 && framed(text, plain, |byte| plain(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

/// A label's value; may be empty.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_plain_name(text)
}

/// A key of labels, annotations, resources: an optional subdomain and `/`, then a name.
pub fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_plain_name(name),
        None => is_plain_name(key),
    }
}

/// An environment variable's name: any printable characters except `=`.
pub(super) fn is_env_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// A port's name (IANA service name).
pub(super) fn is_port_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && framed(text, is_lower, |byte| is_lower(byte) || byte == b'-')
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.contains("--")
}

/// A key of a ConfigMap or Secret.
pub(super) fn is_config_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(plain) && text != "." && !text.starts_with("..")
}

/// A sysctl's name, with dots or slashes.
pub(super) fn is_sysctl(text: &str) -> bool {
    let part = |part: &str| framed(part, is_lower, |byte| is_lower(byte) || byte == b'-' || byte == b'_');
    text.len() <= 253 && text.split(['.', '/']).all(part)
}

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

    /// A search domain.
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

    /// The mode of a file.
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

#[cfg(test)]
mod tests {
    use crate::pod::validate::name::*;

    #[test]
    fn names_are_valid_as_in_kubernetes() {
        type Case<'a> = (fn(&str) -> bool, &'a [&'a str], &'a [&'a str]);
        let cases: &[Case<'_>] = &[
            (is_dns_label, &["a", "a-1", "1"], &["", "A", "a.b", "-a", "a-", "a_b"]),
            (is_dns_subdomain, &["a", "a.b-c.1"], &["", "a..b", ".a", "a.", "A.b", "a.-b"]),
            (is_dns_subdomain_with_underscores, &["_a.b_c", "a"], &["", "__a", "_", "a_"]),
            (is_qualified_name, &["a", "A_b.c", "a.b/C"], &["", "/a", "a/", "a/b/c", "A/b", "-a"]),
            (is_label_value, &["", "A.b_c-1"], &["a b", "-a", "a/"]),
            (is_port_name, &["a", "http-2", "80a"], &["", "80", "a--b", "-a", "HTTP", "sixteen-letters-"]),
            (is_config_key, &[".a", "A_b-c.d"], &["", ".", "..", "..a", "a/b"]),
            (is_env_name, &["A", "a b", "1.2"], &["", "a=b", "ä", "a\n"]),
            (is_sysctl, &["kernel.shm_rmid_forced", "net/ipv4/a.b"], &["", "a..b", "A", "_a"]),
        ];
        for (rule, good, bad) in cases {
            good.iter().for_each(|text| assert!(rule(text), "{text:?} is good"));
            bad.iter().for_each(|text| assert!(!rule(text), "{text:?} is bad"));
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
    }
}
