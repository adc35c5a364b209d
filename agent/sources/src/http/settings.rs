//! The settings of the URL source: the URL, the headers to send, the certificates to trust.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;
use sha2::{Digest, Sha256};

/// The URL source's settings: kubelet's `staticPodURL` and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The URL: `staticPodURL` / `--manifest-url`.
    pub address: Address,
    /// `staticPodURLHeader` / `--manifest-url-header`, with each value marked as sensitive. They are sent only to the
    /// URL's own origin.
    pub headers: HeaderMap,
    /// The pause between two requests: `httpCheckFrequency`.
    pub frequency: Duration,
    /// `staticPodURLCAFile` (PEM): only these CAs are trusted. `None` for the system's.
    pub ca_file: Option<PathBuf>,
    /// `staticPodURLCertFile` and `staticPodURLKeyFile`: PEM; the client certificate.
    pub client_files: Option<(PathBuf, PathBuf)>,
}

/// An `http` or `https` URL that is displayed without password and query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Url);

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// Why it is invalid, without repeating it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| match text.is_ascii() {
            true => format!("is not a valid URL: {error}"),
            false => format!("is not a valid URL: {error}; write the host name in ASCII, in its xn--… form"),
        })?;
        match url.scheme() {
            "http" | "https" if url.has_host() => Ok(Self(url)),
            "http" | "https" => Err("has no host".to_owned()),
            scheme => Err(format!("begins with {scheme}:, not with http: or https:")),
        }
    }

    /// The same URL with `value` in the place of `name`.
    ///
    /// # Errors
    /// It is none any more.
    pub fn with(&self, name: &str, value: &str) -> Result<Self, String> {
        // A URL has braces in its path as `%7B` and `%7D`.
        let encoded = name.replace('{', "%7B").replace('}', "%7D");
        Self::parse(&self.0.as_str().replace(&encoded, value).replace(name, value))
    }

    /// The URL with its password and query, which must not be shown.
    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// The key in the store: the displayed URL, plus a digest of the whole if parts are hidden.
    pub(super) fn store_key(&self) -> String {
        let (shown, whole) = (self.to_string(), self.0.as_str());
        if shown == whole { shown } else { format!("{shown}#{}", digest(whole)) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL without its possibly secret parts.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // A URL with a host always has both.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    let query = url.query().is_some();
    url.set_query(None);
    format!("{url}{}", if query { "?…" } else { "" })
}

/// 64 bits that identify a text that must not be shown.
pub(super) fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_a_url_are_not_shown() {
        let address = Address::parse("https://node:pa55@fleet.example:8443/pods.yaml?token=7#x").unwrap();
        assert_eq!(address.to_string(), "https://fleet.example:8443/pods.yaml?…");
        assert_eq!(format!("{address:?}"), address.to_string());
        assert!(address.store_key().starts_with("https://fleet.example:8443/pods.yaml?…#"), "{}", address.store_key());
        let other = Address::parse("https://node:pa55@fleet.example:8443/pods.yaml?token=8#x").unwrap();
        assert_ne!(address.store_key(), other.store_key());
        let plain = Address::parse("http://fleet.example/pods").unwrap();
        assert_eq!(
            (plain.to_string().as_str(), plain.store_key().as_str()),
            ("http://fleet.example/pods", plain.url().as_str())
        );
    }

    #[test]
    fn a_part_of_the_path_or_the_query_is_replaced() {
        for (text, wanted) in [
            ("https://fleet.example/nodes/{node}/report", "https://fleet.example/nodes/edge1/report"),
            ("https://fleet.example/report?of={node}", "https://fleet.example/report?of=edge1"),
            ("https://fleet.example/report", "https://fleet.example/report"),
        ] {
            assert_eq!(Address::parse(text).unwrap().with("{node}", "edge1").unwrap().url().as_str(), wanted);
        }
    }

    #[test]
    fn an_internationalized_host_name_is_accepted_in_its_ascii_form() {
        let address = Address::parse("https://flotte.xn--kse-qla.example/käse").unwrap();
        assert_eq!(address.url().as_str(), "https://flotte.xn--kse-qla.example/k%C3%A4se");
    }

    #[test]
    fn only_http_urls_are_accepted() {
        for (text, part) in [
            ("fleet.example/pods", "not a valid URL"),
            ("ftp://x/y", "ftp"),
            ("file:///etc/x", "file"),
            ("", "not a valid URL"),
            ("https://flotte.käse.example/pods", "xn--"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
