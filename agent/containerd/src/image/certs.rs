//! The registry hosts of an image: containerd's `certs.d`, with containerd's rules.
//!
//! `hosts.toml` in `<dir>/<host[:port]>` or `<dir>/_default` names mirrors, tried in the order of the file, and the
//! server, tried last. Of containerd's keys `capabilities`, `ca`, `client`, `skip_verify`, `header`, `override_path` and
//! `server` are supported. Without that file the registry itself is used, with the certificates in the directory.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::ImageError;

/// The largest `hosts.toml` that is read.
const MAX_FILE: u64 = 1 << 20;
/// The most files that are read in a directory of certificates.
const MAX_CERTIFICATE_FILES: usize = 1024;

/// One registry host: the base URL of its API and its connection settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https://registry-1.docker.io/v2`, without a slash at the end.
    pub(super) base: String,
    /// The base URL with the other scheme, which is tried if the host does not speak the first.
    pub(super) other_base: Option<String>,
    /// `host[:port]`, for credentials and messages.
    pub(super) host: String,
    /// Whether it may resolve tags.
    pub(super) resolve: bool,
    /// Whether it may serve content.
    pub(super) pull: bool,
    /// Whether any certificate is accepted.
    pub(super) skip_verify: bool,
    /// PEM files of additional certificate authorities.
    pub(super) ca: Vec<PathBuf>,
    /// PEM files of the client's certificate and key; the key may be in the same file.
    pub(super) client: Vec<(PathBuf, Option<PathBuf>)>,
    /// Sent with every request.
    pub(super) headers: Vec<(String, String)>,
    /// Whether it is a mirror, to which `?ns=` passes the registry's name.
    pub(super) mirror: bool,
    /// Whether it is the registry itself, by name or by `server`. Its credentials are sent to it, and to no mirror.
    pub(super) server: bool,
}

impl Endpoint {
    /// An endpoint with containerd's defaults, for a registry without configuration.
    fn default_for(host: &str) -> Self {
        let mut endpoint = Self {
            base: String::new(),
            other_base: None,
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
        self.other_base = None;
        if host == "docker.io" {
            server = "registry-1.docker.io";
        } else if is_loopback(address) {
            // Plain HTTP on loopback ports other than 443, where a certificate adds nothing; TLS as the alternative.
            if !matches!(port, None | Some("443")) {
                scheme = "http";
                self.other_base = (port != Some("80")).then(|| format!("https://{server}/v2"));
            }
            self.skip_verify |= port != Some("80");
        }
        self.host = server.to_owned();
        self.base = format!("{scheme}://{server}/v2");
        self.mirror = false;
    }

    /// As in containerd, TLS is tried first for an http URL with TLS settings, unless its port is HTTP's.
    fn prefer_tls(&mut self, is_explicit: bool) {
        let tls = self.base.strip_prefix("http://").map(|rest| format!("https://{rest}"));
        let port = split_port(&self.host).1;
        if let Some(tls) = tls.filter(|_| is_explicit && !matches!(port, None | Some("80"))) {
            self.other_base = Some(std::mem::replace(&mut self.base, tls));
        }
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

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
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

/// The endpoints for images of `host`, in order. `dir` is `certs.d`; containerd's defaults apply if it does not
/// exist.
///
/// # Errors
///
/// `Config` if the applicable file is unreadable or invalid: a typo must not make a pull bypass the mirror.
pub(super) fn endpoints(dir: &Path, host: &str) -> Result<Vec<Endpoint>, ImageError> {
    let (address, port) = split_port(host);
    let underscored = port.map(|port| format!("{address}_{port}_"));
    let names = underscored.as_deref().into_iter().chain([host, "_default"]);
    // The first existing directory is used, whatever it contains.
    for directory in names.map(|name| dir.join(name)) {
        let failed = |path: &Path, cause: String| ImageError::Config { path: path.to_owned(), cause };
        match std::fs::metadata(&directory) {
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(failed(&directory, error.to_string())),
            Ok(_) => {}
        }
        let path = directory.join("hosts.toml");
        let text = read_hosts(&path).map_err(|error| failed(&path, error.to_string()))?;
        return match text.as_deref() {
            None | Some("") => {
                let endpoint = with_certificate_files(&directory, host);
                endpoint.map(|endpoint| vec![endpoint]).map_err(|error| failed(&directory, error.to_string()))
            }
            Some(text) => parse(text, &directory, host).map_err(|cause| failed(&path, cause)),
        };
    }
    Ok(vec![Endpoint::default_for(host)])
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The text of a `hosts.toml`; `None` if it does not exist.
fn read_hosts(path: &Path) -> io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) if bytes.len() > MAX_FILE => Err(io::Error::other(format!("{} bytes are too many", bytes.len()))),
        Ok(_) => std::fs::read_to_string(path).map(Some),
    }
}

/// The registry itself, with Docker's files in a directory without `hosts.toml`: `*.crt` are authorities, `*.cert`
/// and `*.key` are the client's certificate and key.
fn with_certificate_files(directory: &Path, host: &str) -> io::Result<Endpoint> {
    let mut endpoint = Endpoint::default_for(host);
    let mut files = Vec::new();
    match std::fs::read_dir(directory) {
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
        Ok(entries) => {
            for entry in entries.take(MAX_CERTIFICATE_FILES) {
                files.push(entry?.path());
            }
        }
    }
    files.retain(|path| path.is_file());
    files.sort();
    let with_extension = |wanted: &str| {
        let wanted = wanted.to_owned();
        files.iter().filter(move |path| path.extension().is_some_and(|extension| *extension == *wanted))
    };
    endpoint.ca = with_extension("crt").cloned().collect();
    endpoint.client = with_extension("cert")
        .map(|certificate| {
            let key = certificate.with_extension("key");
            (certificate.clone(), files.contains(&key).then_some(key))
        })
        .collect();
    let is_explicit = !endpoint.ca.is_empty() || !endpoint.client.is_empty();
    endpoint.prefer_tls(is_explicit);
    Ok(endpoint)
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
    // A host's table may describe the registry itself, or only add settings to the server.
    let origins = |endpoint: &Endpoint| -> Vec<_> {
        let bases = std::iter::once(&endpoint.base).chain(&endpoint.other_base);
        bases.filter_map(|base| Some(reqwest::Url::parse(base).ok()?.origin())).collect()
    };
    let of_server = origins(&server);
    for endpoint in &mut endpoints {
        endpoint.server = !endpoint.mirror || origins(endpoint).iter().any(|origin| of_server.contains(origin));
    }
    endpoints.push(server);
    Ok(endpoints)
}

fn endpoint(url: Option<&str>, table: HostTable, dir: &Path, host: &str) -> Result<Endpoint, String> {
    let mut endpoint = Endpoint::default_for(host);
    if let Some(url) = url.filter(|url| !url.is_empty()) {
        let default_host = endpoint.host.clone();
        (endpoint.base, endpoint.host) = base(url, table.override_path)?;
        endpoint.other_base = None;
        endpoint.mirror = endpoint.host != default_host && endpoint.host != host;
        endpoint.skip_verify = false;
    }
    // An empty list means all, like a missing one.
    if let Some(capabilities) = table.capabilities.filter(|capabilities| !capabilities.is_empty()) {
        let has = |name: &str| capabilities.iter().any(|capability| capability.eq_ignore_ascii_case(name));
        (endpoint.pull, endpoint.resolve) = (has("pull"), has("resolve"));
        let known = |capability: &str| ["pull", "resolve", "push"].iter().any(|k| k.eq_ignore_ascii_case(capability));
        if let Some(unknown) = capabilities.iter().find(|capability| !known(capability)) {
            // The capability is a newer containerd's, or a mistake. The others still apply.
            tracing::warn!(host = endpoint.host, capability = unknown, "hosts.toml: unknown capability is ignored");
        }
    }
    let is_explicit = table.skip_verify.is_some() || table.ca.is_some() || table.client.is_some();
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
    endpoint.prefer_tls(is_explicit);
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
mod tests;
