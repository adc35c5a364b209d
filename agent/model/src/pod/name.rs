//! Kubernetes' rules for the names of objects and of their parts, each as a predicate.

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether `text` consists of bytes that are `inner`, with its first and last `outer`. An empty text does not.
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
pub(crate) fn is_dns_subdomain_with_underscores(text: &str) -> bool {
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

/// A label's value, which may be empty.
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
pub(crate) fn is_env_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// A port's name (IANA service name).
pub(crate) fn is_port_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && framed(text, is_lower, |byte| is_lower(byte) || byte == b'-')
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.contains("--")
}

/// A key of a ConfigMap or Secret.
pub(crate) fn is_config_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(plain) && text != "." && !text.starts_with("..")
}

/// A sysctl's name, with dots or slashes.
pub(crate) fn is_sysctl(text: &str) -> bool {
    let part = |part: &str| framed(part, is_lower, |byte| is_lower(byte) || byte == b'-' || byte == b'_');
    text.len() <= 253 && text.split(['.', '/']).all(part)
}

#[cfg(test)]
mod tests {
    use crate::pod::name::*;

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
