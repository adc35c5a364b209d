//! `bundle`: signed bundles, and where they come from.

use std::path::PathBuf;
use std::time::Duration;

use limpet_bundle::settings::BundleSettings;
use limpet_model::go_duration;
use limpet_model::image_name::ImageName;
use reqwest::header::HeaderMap;

use super::super::quantity;
use super::super::tree::Map;
use super::ConfigDiagnostics;
use limpet_sources::http::{Address, HttpSettings};

const KEY: &str = "bundle";
/// How many keys may be listed.
const MAX_KEYS: usize = 64;
/// The shortest interval.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

impl ConfigDiagnostics {
    /// Reads `bundle`; `None` if this node accepts no bundles.
    pub(super) fn bundle(&mut self, map: &Map<'_>) -> Option<BundleSettings> {
        if !map.has_map(KEY) {
            return None;
        }
        let map = Map { entries: map.map(KEY) };
        let keys = self.bundle_keys(&map);
        let max_size = match map.text("maxSize") {
            None => BundleSettings::DEFAULT_MAX_SIZE,
            Some((text, at)) => quantity::bytes(text).filter(|size| *size > 0).unwrap_or_else(|| {
                self.error(Some(at), "bundle.maxSize", format!("{text:?} is not a size such as 500Mi"));
                BundleSettings::DEFAULT_MAX_SIZE
            }),
        };
        let directory = map.text("directory").and_then(|(text, at)| {
            let is_absolute = text.starts_with('/');
            if !is_absolute {
                self.error(Some(at), "bundle.directory", format!("{text:?} is not an absolute path"));
            }
            is_absolute.then(|| PathBuf::from(text))
        });
        let image = map.text("image").and_then(|(text, at)| match ImageName::parse(text) {
            Ok(_) => Some(text.to_owned()),
            Err(error) => {
                self.error(Some(at), "bundle.image", error.to_string());
                None
            }
        });
        let interval = self.bundle_interval(&map);
        Some(BundleSettings { keys, directory, image, interval, max_size })
    }

    /// Reads the URL, with its certificates and its interval.
    pub(super) fn bundle_url(&mut self, map: &Map<'_>) -> Option<HttpSettings> {
        let map = Map { entries: map.map(KEY) };
        let mut ca_file = PathBuf::new();
        if let Some((text, at)) = map.text("urlCAFile") {
            match text.starts_with('/') {
                true => ca_file = PathBuf::from(text),
                false => self.error(Some(at), "bundle.urlCAFile", format!("{text:?} is not an absolute path")),
            }
        }
        let (text, at) = map.text("url")?;
        let address = match Address::parse(text) {
            Ok(address) => address,
            Err(why) => {
                self.error(Some(at), "bundle.url", why);
                return None;
            }
        };
        Some(HttpSettings {
            address,
            headers: HeaderMap::new(),
            frequency: bundle_interval(&map).unwrap_or(BundleSettings::DEFAULT_INTERVAL),
            ca_file: Some(ca_file).filter(|path| path.is_absolute()),
            client_files: None,
        })
    }

    fn bundle_interval(&mut self, map: &Map<'_>) -> Duration {
        if let (Some((text, at)), None) = (map.text("interval"), bundle_interval(map)) {
            let shortest = SHORTEST_INTERVAL.as_secs();
            self.error(
                Some(at),
                "bundle.interval",
                format!("{text:?} is not a duration of {shortest} s or more, such as 5m"),
            );
        }
        bundle_interval(map).unwrap_or(BundleSettings::DEFAULT_INTERVAL)
    }

    fn bundle_keys(&mut self, map: &Map<'_>) -> Vec<PathBuf> {
        let (path, keys) = ("bundle.keys", map.texts("keys"));
        if keys.is_empty() {
            let message =
                "is missing: name the files of the public keys that may sign bundles, as minisign -G writes them";
            self.error(None, path, message);
        }
        if keys.len() > MAX_KEYS {
            self.error(keys.first().map(|(_, at)| *at), path, format!("more than {MAX_KEYS} keys"));
        }
        let mut files = Vec::new();
        for (text, at) in keys {
            match text.starts_with('/') {
                true => files.push(PathBuf::from(text)),
                false => self.error(Some(at), path, format!("{text:?} is not an absolute path")),
            }
        }
        files
    }
}

/// The interval, if it is valid.
fn bundle_interval(map: &Map<'_>) -> Option<Duration> {
    go_duration::parse(map.text("interval")?.0).filter(|interval| *interval >= SHORTEST_INTERVAL)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tests::load_text;
    use super::*;

    fn loaded(bundle: &str) -> Result<Option<BundleSettings>, String> {
        let text = format!("apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\nbundle: {bundle}\n");
        load_text(&text, &[]).0.map(|config| config.bundle).map_err(|mistakes| mistakes.join("\n"))
    }

    #[test]
    fn bundles_need_a_key_and_have_a_limit() {
        let max_size = BundleSettings::DEFAULT_MAX_SIZE;
        let expected = BundleSettings {
            keys: vec!["/a.pub".into()],
            directory: None,
            image: None,
            interval: BundleSettings::DEFAULT_INTERVAL,
            max_size,
        };
        assert_eq!(loaded("{keys: [/a.pub]}").unwrap(), Some(expected.clone()));
        assert_eq!(
            loaded("{keys: [/a.pub], maxSize: 1Ki}").unwrap(),
            Some(BundleSettings { max_size: 1 << 10, ..expected })
        );
        let directory = loaded("{keys: [/a.pub], directory: /media/stick}").unwrap().unwrap().directory;
        assert_eq!(directory, Some("/media/stick".into()));
        for (text, part) in [
            ("{keys: [/a.pub], url: 'ftp://x/y'}", "bundle.url: begins with ftp:"),
            ("{keys: [/a.pub], urlCAFile: x}", "bundle.urlCAFile"),
            ("{keys: [/a.pub], image: X//y}", "bundle.image: couldn't parse image name"),
            ("{keys: [/a.pub], interval: 1ms}", "bundle.interval: \"1ms\" is not a duration"),
            ("{keys: [/a.pub], directory: stick}", "bundle.directory: \"stick\" is not an absolute path"),
            ("{}", "bundle.keys: is missing"),
            ("{keys: []}", "bundle.keys: is missing"),
            ("{keys: [a.pub]}", "\"a.pub\" is not an absolute path"),
            ("{keys: [/a.pub], maxSize: much}", "bundle.maxSize: \"much\" is not a size"),
            ("{keys: [/a.pub], maxSize: 0}", "maxSize"),
            ("{keys: [/a.pub], dirctory: /x}", "dirctory"),
        ] {
            let error = loaded(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
