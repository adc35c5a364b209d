//! Cipher suites of TLS 1.2 by Go's names, as kubelet's `tlsCipherSuites` has them.

use rustls::CipherSuite;

/// The suites that limpet supports.
const SPOKEN: [(&str, CipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
/// The suites of TLS 1.3. They are not chosen by name: all are supported.
const OF_TLS13: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// The prefixes of the other suites that Go knows.
const OTHERS: [&str; 3] = ["TLS_RSA_WITH_", "TLS_ECDHE_RSA_WITH_", "TLS_ECDHE_ECDSA_WITH_"];

/// What a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// A supported suite.
    Spoken(CipherSuite),
    /// A suite of TLS 1.3, which is always supported.
    OfTls13,
    /// An old suite, which is not supported.
    Old,
}

/// The suite of that name; `None` if there is none.
pub(super) fn named(name: &str) -> Option<Named> {
    if let Some((_, suite)) = SPOKEN.iter().find(|(known, _)| *known == name) {
        return Some(Named::Spoken(*suite));
    }
    if OF_TLS13.contains(&name) {
        return Some(Named::OfTls13);
    }
    let is_old = ["_SHA", "_SHA256", "_SHA384"].iter().any(|end| name.ends_with(end))
        && OTHERS.iter().any(|begin| name.starts_with(begin));
    is_old.then_some(Named::Old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_gos() {
        let safe = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
        assert_eq!(named("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), Some(Named::Spoken(safe)));
        assert_eq!(named("TLS_AES_128_GCM_SHA256"), Some(Named::OfTls13));
        assert_eq!(named("TLS_RSA_WITH_AES_128_CBC_SHA"), Some(Named::Old));
        assert_eq!(named("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA"), Some(Named::Old));
        assert_eq!(named("ECDHE-RSA-AES128-GCM-SHA256"), None);
        let provider = rustls::crypto::ring::default_provider();
        let is_there = |suite: CipherSuite| provider.cipher_suites.iter().any(|offered| offered.suite() == suite);
        assert!(SPOKEN.iter().all(|(_, suite)| is_there(*suite)));
    }
}
