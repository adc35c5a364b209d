//! The registry hosts of an image: containerd's `certs.d`, with containerd's rules.
//!
//! `<dir>/<host[:port]>/hosts.toml` or `<dir>/_default/hosts.toml` name mirrors, tried in the order of the file, and the
//! server, tried last. Without a file the registry itself is used. Of containerd's keys `capabilities`, `ca`,
//! `client`, `skip_verify`, `header`, `override_path` and `server` are supported.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::ImageError;

/// The largest `hosts.toml` that is read.
const MAX_FILE: u64 = 1 << 20;

/// One registry host: the base URL of its API and its connection settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https://registry-1.docker.io/v2`, without a slash at the end.
    pub(super) base: String,
    /// `host[:port]`, for credentials and messages.
    pub(super) host: String,
    /// May resolve tags.
    pub(super) resolve: bool,
    /// May serve content.
    pub(super) pull: bool,
    /// Accepts any certificate.
    pub(super) skip_verify: bool,
    /// PEM files of additional certificate authorities.
    pub(super) ca: Vec<PathBuf>,
    /// PEM files of the client's certificate and key; the key may be in the same file.
    pub(super) client: Vec<(PathBuf, Option<PathBuf>)>,
    /// Sent with every request.
    pub(super) headers: Vec<(String, String)>,
    /// Not the registry itself: `?ns=` passes the registry's name.
    pub(super) mirror: bool,
    /// Where the registry is by its name or by `server`: its credentials are for it, and for no mirror.
    pub(super) server: bool,
}

impl Endpoint {
    /// An endpoint with containerd's defaults, for a registry without configuration.
    fn default_for(host: &str) -> Self {
        let mut endpoint = Self {
            base: String::new(),
            host: host.to_owned(),
            resolve: true,
            pull: true,
            skip_verify: false,
            ca: Vec::new(),
            client: Vec::new(),
            headers: Vec::new(),
            mirror: false,
            server: true,
        };
        endpoint.set_default_server(host);
        endpoint
    }

    fn set_default_server(&mut self, host: &str) {
        let (address, port) = split_port(host);
        let mut scheme = "https";
        let mut server = host;
        if host == "docker.io" {
            server = "registry-1.docker.io";
        } else if is_loopback(address) {
            // Plain HTTP on a loopback port other than 443, where a certificate adds nothing.
            if !matches!(port, None | Some("443")) {
                scheme = "http";
            }
            self.skip_verify |= port != Some("80");
        }
        self.host = server.to_owned();
        self.base = format!("{scheme}://{server}/v2");
        self.mirror = false;
    }
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((address, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => (address, Some(port)),
        _ => (host, None),
    }
}

fn is_loopback(address: &str) -> bool {
    let address = address.trim_start_matches('[').trim_end_matches(']');
    address == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A string or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// The keys of one `[host."…"]` table; those of the server are at the top level of the file.
#[derive(Debug, Clone, Default, Deserialize)]
struct HostTable {
    capabilities: Option<Vec<String>>,
    ca: Option<OneOrMany<PathBuf>>,
    client: Option<OneOrMany<OneOrMany<PathBuf>>>,
    skip_verify: Option<bool>,
    #[serde(default)]
    header: toml::Table,
    #[serde(default)]
    override_path: bool,
}

#[derive(Debug, Default, Deserialize)]
struct HostsFile {
    server: Option<String>,
    #[serde(default)]
    host: toml::Table,
}

/// The endpoints for images of `host`, in order. `dir` is `certs.d`; a missing one means containerd's defaults.
///
/// # Errors
/// `Config` when the applicable file is unreadable or invalid: a typo must not let a pull bypass the mirror.
pub(super) fn endpoints(dir: &Path, host: &str) -> Result<Vec<Endpoint>, ImageError> {
    let (address, port) = split_port(host);
    let underscored = port.map(|port| format!("{address}_{port}_"));
    let names = underscored.as_deref().into_iter().chain([host, "_default"]);
    for directory in names.map(|name| dir.join(name)) {
        let path = directory.join("hosts.toml");
        let wrong = |cause: String| ImageError::Config { path: path.clone(), cause };
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(wrong(error.to_string())),
            Ok(found) if found.len() > MAX_FILE => return Err(wrong(format!("{} bytes are too many", found.len()))),
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        return parse(&text, &directory, host).map_err(wrong);
    }
    Ok(vec![Endpoint::default_for(host)])
}

/// Parses one `hosts.toml`; paths in it are relative to `dir`.
fn parse(text: &str, dir: &Path, host: &str) -> Result<Vec<Endpoint>, String> {
    let file: HostsFile = toml::from_str(text).map_err(|error| error.to_string())?;
    let server: HostTable = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut endpoints = Vec::with_capacity(file.host.len() + 1);
    for (url, table) in file.host {
        let table: HostTable = table.try_into().map_err(|error| format!("host.{url:?}: {error}"))?;
        endpoints.push(endpoint(Some(&url), table, dir, host).map_err(|error| format!("host.{url:?}: {error}"))?);
    }
    let server = endpoint(file.server.as_deref(), server, dir, host).map_err(|error| format!("server: {error}"))?;
    // A host's table may be that of the registry itself, or only add settings to the server.
    let origin = |endpoint: &Endpoint| reqwest::Url::parse(&endpoint.base).ok().map(|url| url.origin());
    for endpoint in &mut endpoints {
        endpoint.server = !endpoint.mirror || origin(endpoint) == origin(&server);
    }
    endpoints.push(server);
    Ok(endpoints)
}

fn endpoint(url: Option<&str>, table: HostTable, dir: &Path, host: &str) -> Result<Endpoint, String> {
    let mut endpoint = Endpoint::default_for(host);
    if let Some(url) = url.filter(|url| !url.is_empty()) {
        let own = endpoint.host.clone();
        (endpoint.base, endpoint.host) = base(url, table.override_path)?;
        endpoint.mirror = endpoint.host != own && endpoint.host != host;
        endpoint.skip_verify = false;
    }
    if let Some(capabilities) = table.capabilities {
        if let Some(unknown) = capabilities.iter().find(|c| !matches!(c.as_str(), "pull" | "resolve" | "push")) {
            return Err(format!("unknown capability {unknown:?}"));
        }
        endpoint.pull = capabilities.iter().any(|c| c == "pull");
        endpoint.resolve = capabilities.iter().any(|c| c == "resolve");
    }
    endpoint.skip_verify = table.skip_verify.unwrap_or(endpoint.skip_verify);
    endpoint.ca = table.ca.map(OneOrMany::into_vec).unwrap_or_default().iter().map(|path| dir.join(path)).collect();
    for pair in table.client.map(OneOrMany::into_vec).unwrap_or_default() {
        let mut paths = pair.into_vec().into_iter();
        match (paths.next(), paths.next(), paths.next()) {
            (Some(certificate), key, None) => {
                let key = key.filter(|key| !key.as_os_str().is_empty()).map(|key| dir.join(key));
                endpoint.client.push((dir.join(certificate), key));
            }
            _ => return Err("client: a file, or pairs of certificate and key".to_owned()),
        }
    }
    for (name, value) in table.header {
        let values = value.try_into::<OneOrMany<String>>().map_err(|error| format!("header {name}: {error}"))?;
        endpoint.headers.extend(values.into_vec().into_iter().map(|value| (name.clone(), value)));
    }
    Ok(endpoint)
}

/// The API's base and the host of a configured URL: `/v2` is appended unless `override_path` is set.
fn base(url: &str, override_path: bool) -> Result<(String, String), String> {
    let url = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
    let parsed = reqwest::Url::parse(&url).map_err(|error| error.to_string())?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(format!("scheme {} is neither http nor https", parsed.scheme()));
    }
    let name = parsed.host_str().ok_or("no host in the URL")?;
    let host = parsed.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let mut path = parsed.path().trim_end_matches('/').to_owned();
    if !override_path && !path.ends_with("/v2") {
        path.push_str("/v2");
    }
    Ok((format!("{}://{host}{path}", parsed.scheme()), host))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_registrys_credentials_are_for_its_name_and_its_server() {
        let server = |text: &str| -> Vec<bool> {
            parse(text, Path::new("/"), "r.test:5000").unwrap().iter().map(|endpoint| endpoint.server).collect()
        };
        assert_eq!(server("[host.\"http://r.test:5000\"]\n[host.\"https://mirror\"]"), [true, false, true]);
        assert_eq!(server("server = \"https://s\"\n[host.\"https://s\"]\n[host.\"http://s\"]"), [true, false, true]);
    }

    fn bases(endpoints: &[Endpoint]) -> Vec<&str> {
        endpoints.iter().map(|endpoint| endpoint.base.as_str()).collect()
    }

    #[test]
    fn without_a_file_containerds_defaults_apply() {
        let table = [
            ("docker.io", "https://registry-1.docker.io/v2", false),
            ("quay.io", "https://quay.io/v2", false),
            ("quay.io:8443", "https://quay.io:8443/v2", false),
            ("localhost:5000", "http://localhost:5000/v2", true),
            ("127.0.0.1:5000", "http://127.0.0.1:5000/v2", true),
            ("127.9.9.9:80", "http://127.9.9.9:80/v2", false),
            ("[::1]:5000", "http://[::1]:5000/v2", true),
            ("localhost", "https://localhost/v2", true),
            ("localhost:443", "https://localhost:443/v2", true),
            ("10.0.0.1:5000", "https://10.0.0.1:5000/v2", false),
        ];
        for (host, base, skip_verify) in table {
            let found = endpoints(Path::new("/nonexistent"), host).unwrap();
            assert_eq!(bases(&found), [base]);
            assert_eq!(found[0].skip_verify, skip_verify, "{host}");
            assert!(!found[0].mirror && found[0].pull && found[0].resolve);
        }
    }

    #[test]
    fn hosts_are_tried_in_the_order_of_the_file_and_the_server_last() {
        let text = r#"
            server = "https://upstream.example"
            [host."http://z-mirror:5000"]
              capabilities = ["pull"]
            [host."https://a-mirror/v2"]
              skip_verify = true
              ca = "ca.pem"
              client = [["/c.pem", "k.pem"], ["both.pem", ""]]
              [host."https://a-mirror/v2".header]
                X-Meta = ["one", "two"]
                X-One = "1"
            [host."https://cache.example/proxy/hub"]
              override_path = true
        "#;
        let found = parse(text, Path::new("/certs"), "docker.io").unwrap();
        assert_eq!(
            bases(&found),
            [
                "http://z-mirror:5000/v2",
                "https://a-mirror/v2",
                "https://cache.example/proxy/hub",
                "https://upstream.example/v2"
            ]
        );
        assert!(!found[0].resolve && found[0].pull && found[0].mirror);
        assert!(found[1].skip_verify && found[1].resolve);
        assert_eq!(found[1].ca, [PathBuf::from("/certs/ca.pem")]);
        let pairs = [("/c.pem".into(), Some("/certs/k.pem".into())), ("/certs/both.pem".into(), None)];
        assert_eq!(found[1].client, pairs);
        let headers = [("X-Meta", "one"), ("X-Meta", "two"), ("X-One", "1")];
        assert_eq!(found[1].headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn without_a_server_the_registry_itself_is_last() {
        let found = parse("[host.\"http://mirror\"]\n", Path::new("/"), "docker.io").unwrap();
        assert_eq!(bases(&found), ["http://mirror/v2", "https://registry-1.docker.io/v2"]);
        assert!(found[0].mirror && !found[1].mirror);
        let found = parse("server = \"http://10.0.0.1:5000\"\n", Path::new("/"), "10.0.0.1:5000").unwrap();
        assert_eq!(bases(&found), ["http://10.0.0.1:5000/v2"]);
        assert!(!found[0].mirror);
        let found = parse("skip_verify = true\n", Path::new("/"), "quay.io").unwrap();
        assert!(found[0].skip_verify);
    }

    #[test]
    fn an_invalid_file_is_an_error() {
        for text in [
            "server = ",
            "server = \"ftp://x\"",
            "[host.\"http://m\"]\ncapabilities = [\"pul\"]",
            "[host.\"http://m\"]\nca = 3",
            "[host.\"http://m\".header]\nx = 3",
            "[host.\"http://m\"]\nclient = [[\"a\", \"b\", \"c\"]]",
        ] {
            assert!(parse(text, Path::new("/"), "docker.io").is_err(), "{text}");
        }
    }

    #[test]
    fn the_directory_of_the_host_is_found() {
        let dir = std::env::temp_dir().join(format!("limpet-certs-{}", std::process::id()));
        let put = |name: &str, server: &str| {
            std::fs::create_dir_all(dir.join(name)).unwrap();
            std::fs::write(dir.join(name).join("hosts.toml"), format!("server = \"http://{server}\"")).unwrap();
        };
        put("_default", "fallback");
        assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://fallback/v2"]);
        put("quay.io:80", "colon");
        assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://colon/v2"]);
        put("quay.io_80_", "underscore");
        assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://underscore/v2"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
