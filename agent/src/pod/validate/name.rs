//! Kubernetes' rules for names.

use crate::pod::Fault;

pub(super) const SUBDOMAIN_RULE: &str =
    "lower-case letters, digits, - and ., beginning and ending with a letter or digit, at most 253 characters";
pub(super) const LABEL_RULE: &str =
    "lower-case letters, digits and -, beginning and ending with a letter or digit, at most 63 characters";
pub(super) const LABEL_VALUE_RULE: &str =
    "letters, digits, -, _ and ., beginning and ending with a letter or digit, at most 63 characters";
const KEY_RULE: &str = "an optional domain and /, then a name of letters, digits, -, _ and ., at most 63 characters";

/// RFC 1123 label.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 63
        && text.bytes().all(|byte| plain(&byte) || byte == b'-')
        && text.as_bytes().first().is_some_and(plain)
        && text.as_bytes().last().is_some_and(plain)
}

/// RFC 1123 subdomain.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    let part = |label: &str| {
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        label.bytes().all(|byte| plain(&byte) || byte == b'-')
            && label.as_bytes().first().is_some_and(plain)
            && label.as_bytes().last().is_some_and(plain)
    };
    text.len() <= 253 && text.split('.').all(part)
}

fn is_plain_name(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    text.len() <= 63
        && text.bytes().all(|byte| plain(&byte) || matches!(byte, b'-' | b'_' | b'.'))
        && text.as_bytes().first().is_some_and(plain)
        && text.as_bytes().last().is_some_and(plain)
}

/// A label's value; empty is fine.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_plain_name(text)
}

/// The fault of a label's or annotation's key.
pub(super) fn qualified_name_fault(path: &str, key: &str) -> Option<Fault> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let good = is_plain_name(name) && prefix.is_none_or(is_dns_subdomain);
    (!good).then(|| Fault::error(path, format!("{key:?} is no key")).with_remedy(KEY_RULE))
}

/// An environment variable's name: anything printable but `=`.
pub(super) fn is_env_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// A port's name (IANA service name).
pub(super) fn is_port_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=15).contains(&text.len())
        && text.bytes().all(|byte| plain(byte) || byte == b'-')
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}
