//! `staticPodURL` and the related settings, collected from both documents and the flags, then validated together.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::RunFlags;
use super::keys::Shape;
use super::misfit::{expected, misfit};
use super::tree::{Map, Position};
use limpet_model::go_duration;
use limpet_sources::http::{Address, HttpSettings};

/// kubelet's `httpCheckFrequency`.
const DEFAULT_FREQUENCY: Duration = Duration::from_secs(20);

/// The origin of a setting: the key or flag, and its position in the file.
pub(super) type SettingOrigin = (&'static str, Option<Position>);

/// The collected settings.
#[derive(Debug, Default)]
pub(super) struct UrlParts {
    pub(super) address: Option<(String, SettingOrigin)>,
    pub(super) headers: Vec<(String, String, SettingOrigin)>,
    pub(super) frequency: Option<(String, SettingOrigin)>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) cert_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
}

/// An error: the origin of the setting, and the message.
pub(super) type Mistake = (SettingOrigin, String);

impl UrlParts {
    /// Collects the settings of KubeletConfiguration; returns errors: position, path and message.
    pub(super) fn kubelet(&mut self, map: &Map<'_>) -> Vec<(Position, String, String)> {
        let mut mistakes = Vec::new();
        if let Some((url, at)) = map.text("staticPodURL").filter(|(url, _)| !url.is_empty()) {
            self.address = Some((url.to_owned(), ("staticPodURL", Some(at))));
        }
        if let Some((frequency, at)) = map.text("httpCheckFrequency") {
            self.frequency = Some((frequency.to_owned(), ("httpCheckFrequency", Some(at))));
        }
        for entry in map.map("staticPodURLHeader") {
            if let Some((position, kind)) = misfit(Shape::Texts, &entry.node) {
                let message = format!("expected {}, found {kind}", expected(Shape::Texts));
                mistakes.push((position, format!("staticPodURLHeader.{}", entry.key), message));
            }
            let values = Map { entries: std::slice::from_ref(entry) }.texts(&entry.key);
            for (value, at) in values {
                self.headers.push((entry.key.clone(), value.to_owned(), ("staticPodURLHeader", Some(at))));
            }
        }
        mistakes
    }

    /// Collects the settings of the flags, which take precedence.
    pub(super) fn flags(&mut self, flags: &RunFlags) -> Result<(), String> {
        if let Some(url) = &flags.manifest_url {
            self.address = Some((url.clone(), ("--manifest-url", None))).filter(|(url, _)| !url.is_empty());
        }
        if let Some(frequency) = &flags.http_check_frequency {
            self.frequency = Some((frequency.clone(), ("--http-check-frequency", None)));
        }
        self.header_flags(&flags.manifest_url_header)
    }

    /// Parses kubelet's format of headers in a flag, `name:value,name:value`. Headers of the flag replace those of the
    /// file.
    fn header_flags(&mut self, flags: &[String]) -> Result<(), String> {
        if flags.is_empty() {
            return Ok(());
        }
        self.headers.clear();
        for pair in flags.iter().flat_map(|flag| flag.split(',')).filter(|pair| !pair.trim().is_empty()) {
            let (name, value) = pair.split_once(':').ok_or("a header must be name:value")?;
            self.headers.push((name.trim().to_owned(), value.trim().to_owned(), ("--manifest-url-header", None)));
        }
        Ok(())
    }

    /// The validated settings; `None` without a URL.
    pub(super) fn settle(self) -> (Option<HttpSettings>, Vec<Mistake>) {
        let mut mistakes = Vec::new();
        let frequency = self.frequency.and_then(|(text, origin)| match go_duration::parse(&text) {
            Some(Duration::ZERO) => None,
            Some(frequency) if frequency >= Duration::from_secs(1) => Some(frequency),
            Some(_) => {
                mistakes.push((origin, format!("{text} is shorter than 1s")));
                None
            }
            None => {
                mistakes.push((origin, format!("{text:?} is not a duration such as 20s or 1m30s")));
                None
            }
        });
        let mut headers = HeaderMap::new();
        for (name, value, origin) in self.headers {
            // The value may be secret and is not repeated.
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(name), Ok(mut value)) => {
                    value.set_sensitive(true);
                    // A map with more headers would panic.
                    if headers.try_append(name, value).is_err() {
                        mistakes.push((origin, "there are too many headers".to_owned()));
                    }
                }
                (Err(_), _) => mistakes.push((origin, format!("{name:?} is not a header name"))),
                (_, Err(_)) => mistakes.push((origin, format!("the value of {name} cannot be sent in a header"))),
            }
        }
        let client_files = match (self.cert_file, self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                mistakes.push((("staticPodURLCertFile", None), "needs staticPodURLKeyFile too".to_owned()));
                None
            }
            (None, Some(_)) => {
                mistakes.push((("staticPodURLKeyFile", None), "needs staticPodURLCertFile too".to_owned()));
                None
            }
        };
        let address = self
            .address
            .and_then(|(text, origin)| Address::parse(&text).map_err(|mistake| mistakes.push((origin, mistake))).ok());
        let settings = address.map(|address| HttpSettings {
            address,
            headers,
            frequency: frequency.unwrap_or(DEFAULT_FREQUENCY),
            ca_file: self.ca_file,
            client_files,
        });
        (settings, mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_flag_replace_those_of_the_file() {
        let mut parts =
            UrlParts { address: Some(("http://x/".to_owned(), ("staticPodURL", None))), ..UrlParts::default() };
        parts.headers.push(("old".to_owned(), "1".to_owned(), ("staticPodURLHeader", None)));
        assert!(parts.header_flags(&[]).is_ok() && parts.headers.len() == 1);
        assert!(parts.header_flags(&["a:hello,b:again,c:world".to_owned(), "b:beautiful".to_owned()]).is_ok());
        let (settings, mistakes) = parts.settle();
        assert_eq!(mistakes, []);
        let headers = settings.map(|settings| settings.headers).unwrap_or_default();
        let header =
            |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect::<Vec<_>>().join(" ");
        assert_eq!(
            (header("a"), header("b"), header("c"), header("old")),
            ("hello".into(), "again beautiful".into(), "world".into(), String::new())
        );
        assert!(UrlParts::default().header_flags(&["token".to_owned()]).is_err());
    }
}
