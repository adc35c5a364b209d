//! From flags and file to one `Config`: parses with positions, checks every key and value, reports all errors.

mod bundle;
mod cluster;
mod credential_providers;
mod devices;
mod documents;
mod eviction;
mod field_validation;
mod generations;
mod image_gc;
mod image_policy;
mod image_verification;
mod layers;
mod memory_qos;
mod pod_security;
mod processors;
mod reserved;
mod runtime_classes;
mod server;
mod services;
mod shutdown;
mod updates;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_saphyr::budget::Budget;

use super::keys::{KUBELET, Key, LIMPET, Plain, Shape, Support};
use super::misfit::{expected, misfit};
use super::tree::{Entry, Map, Node, Position, Value, position};
use super::url::UrlParts;
use super::{Config, ConfigError, ConfigWarning, RunFlags, kubelet_flags};
use limpet_model::node::NodeAddresses;
use limpet_model::pod::{Fault, Severity};
use server::CertificateParts;

/// The limit of the configuration file.
const MAX_FILE: u64 = 1 << 20;
/// How similar an existing key must be to be suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.8;

/// Reads `--config` and merges it with the flags, which take precedence.
///
/// # Errors
/// The file cannot be read, or there are errors in it or in the flags: all of them are returned.
pub fn load(flags: &RunFlags) -> Result<(Config, Vec<ConfigWarning>), ConfigError> {
    let mut judge = ConfigDiagnostics {
        origin: Arc::from("flags"),
        origins: Vec::new(),
        faults: Vec::new(),
        url: UrlParts::default(),
        tokens_wanted: false,
        certificate: CertificateParts::default(),
    };
    let mut config = Config::default();
    judge.layers(flags, &mut config)?;
    let file = std::mem::replace(&mut judge.origin, Arc::from("flags"));
    judge.flags(flags, &mut config);
    let (url, mistakes) = std::mem::take(&mut judge.url).settle();
    for ((key, position), message) in mistakes {
        judge.origin = Arc::from(if key.starts_with("--") { "flags" } else { &*file });
        judge.error(position, key, message);
    }
    config.sources.manifest_url = url;
    judge.origin = Arc::clone(&file);
    judge.settle_certificate(&mut config.server);
    config.server.reviews = config.cluster.kubeconfig.is_some();
    judge.cluster_as_a_whole(&config.cluster);
    judge.server_as_a_whole(&config.server);
    judge.origin = Arc::from("flags");
    if config.sources.manifest_path.is_none() && config.sources.manifest_url.is_none() && config.bundle.is_none() {
        judge.warn(None, "staticPodPath", "is not set, nor is staticPodURL: pods come only from limpet apply");
    }
    let (errors, warnings): (Vec<_>, Vec<_>) =
        judge.faults.into_iter().partition(|fault| fault.severity == Severity::Error);
    if errors.is_empty() { Ok((config, warnings)) } else { Err(ConfigError::Faults(errors)) }
}

fn read_capped(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(std::io::Error::other(format!("larger than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// Collects errors and warnings.
struct ConfigDiagnostics {
    /// The origin that is being read.
    origin: Arc<str>,
    /// All origins; `Position::origin` is an index into them.
    origins: Vec<Arc<str>>,
    faults: Vec<Fault>,
    url: UrlParts,
    /// Whether `authentication.webhook.enabled` is true by configuration, and not by default.
    tokens_wanted: bool,
    /// `tlsCertFile` and `tlsPrivateKeyFile`, from the file and from flags.
    certificate: CertificateParts,
}

impl ConfigDiagnostics {
    fn error(&mut self, position: Option<Position>, path: &str, message: impl Into<String>) {
        self.push(position, Fault::error(path, message));
    }

    fn warn(&mut self, position: Option<Position>, path: &str, message: impl Into<String>) {
        self.push(position, Fault::warning(path, message));
    }

    fn push(&mut self, position: Option<Position>, fault: Fault) {
        let Some(Position { origin, at }) = position else {
            self.faults.push(Fault { origin: Arc::clone(&self.origin), ..fault });
            return;
        };
        let origin = self.origins.get(origin).map_or_else(|| Arc::clone(&self.origin), Arc::clone);
        // Users of a flag know the flag, and not the key.
        let flag = at.is_none().then(|| kubelet_flags::flag_of(&fault.path)).flatten();
        let path = flag.map_or(fault.path, Into::into);
        self.faults.push(Fault { origin, position: at, path, ..fault });
    }

    /// The current origin, without a line.
    fn place(&mut self) -> Position {
        let known = self.origins.iter().position(|origin| *origin == self.origin);
        let origin = known.unwrap_or_else(|| {
            self.origins.push(Arc::clone(&self.origin));
            self.origins.len() - 1
        });
        Position { origin, at: None }
    }

    /// The documents of a file; none if it is not YAML, which is reported.
    fn documents(&mut self, text: &str) -> Vec<Node> {
        let mut options = serde_saphyr::Options::default();
        options.legacy_octal_numbers = true;
        let mut budget = Budget::default();
        budget.max_depth = 64;
        budget.max_documents = 16;
        options.budget = Some(budget);
        match serde_saphyr::from_multiple_with_options::<Node>(text, options) {
            Ok(mut documents) => {
                let origin = self.place().origin;
                documents.iter_mut().for_each(|document| document.set_origin(origin));
                documents
            }
            Err(error) => {
                let place = self.place();
                let position = error.location().map(|at| Position { at: position(at).at, ..place });
                self.error(position, "", format!("not YAML: {}", error.without_snippet()));
                Vec::new()
            }
        }
    }

    /// Checks that every key exists and has the right type, and warns of keys without effect.
    fn keys(&mut self, entries: &[Entry], keys: &[Key], parent: &str) {
        for entry in entries {
            let path = if parent.is_empty() { entry.key.clone() } else { format!("{parent}.{}", entry.key) };
            let Some(key) = keys.iter().find(|key| key.name == entry.key) else {
                let mut fault = Fault::error(path, "no such key");
                if let Some(kind) = kind_with(&entry.key).filter(|_| parent.is_empty()) {
                    fault = fault.with_remedy(format!("it belongs in {kind}"));
                } else if let Some(similar) = most_similar(&entry.key, keys) {
                    fault = fault.with_remedy(format!("did you mean {similar}?"));
                }
                self.push(Some(entry.position), fault);
                continue;
            };
            if matches!(entry.node.value, Value::Null) {
                continue;
            }
            if let (Shape::Object(inner), Value::Map(entries)) = (key.shape, &entry.node.value) {
                self.keys(entries, inner, &path);
                continue;
            }
            if let Some((position, kind)) = misfit(key.shape, &entry.node) {
                self.error(Some(position), &path, format!("expected {}, found {kind}", expected(key.shape)));
                continue;
            }
            match key.support {
                Support::Acts => {}
                _ if is_unset(&entry.node.value) => {}
                Support::NotYet(anyway) if anyway.is_some_and(|anyway| is(anyway, &entry.node.value)) => {}
                Support::NotYet(_) => self.warn(Some(entry.position), &path, "is not supported yet and has no effect"),
                Support::Needless(why) => self.warn(Some(entry.position), &path, format!("has no effect: {why}")),
            }
        }
    }

    fn flags(&mut self, flags: &RunFlags, config: &mut Config) {
        let ignored = flags.kubelet.without_effect();
        if !ignored.is_empty() {
            let message = match ignored.len() {
                1 => "is ignored: limpet has no such setting",
                _ => "are ignored: limpet has no such settings",
            };
            self.warn(None, &ignored.join(", "), message);
        }
        for flag in flags.kubelet.without_value() {
            self.error(None, &flag, "needs a value");
        }
        config.node.hostname_override = flags.hostname_override.clone().filter(|name| !name.trim().is_empty());
        if let Some(endpoint) = &flags.container_runtime_endpoint {
            self.endpoint(endpoint, None, "--container-runtime-endpoint", &mut config.runtime.endpoint);
        }
        let paths = [
            ("--pod-manifest-path", &flags.pod_manifest_path),
            ("--root-dir", &flags.root_dir),
            ("--socket", &flags.socket),
        ];
        for (name, path) in paths {
            let Some(path) = path else { continue };
            if path.as_os_str().is_empty() {
                match name {
                    "--root-dir" => self.error(None, name, "is empty; name a directory, or omit the flag"),
                    "--socket" => {}
                    _ => config.sources.manifest_path = None,
                }
                continue;
            }
            match std::path::absolute(path) {
                Ok(path) if name == "--root-dir" => config.root_dir = path,
                Ok(path) if name == "--socket" => config.local.socket = Some(path),
                Ok(path) => config.sources.manifest_path = Some(path),
                Err(error) => self.error(None, name, error.to_string()),
            }
        }
        if let Err(mistake) = self.url.flags(flags) {
            self.error(None, "--manifest-url-header", mistake);
        }
        match flags.node_ip.as_deref() {
            None => {}
            Some("") => config.node.ip = NodeAddresses::NONE,
            Some(addresses) => self.node_ip(addresses, None, "--node-ip", &mut config.node.ip),
        }
        self.cluster_flags(flags, &mut config.cluster);
        self.reserved_flags(flags, &mut config.node.reserved);
        config.reserve_named_cpus();
        self.server_flags(&flags.server, &mut config.server);
        self.credential_provider_flags(flags, &mut config.images.credential_providers);
        if let Some(verbosity) = flags.verbosity {
            config.verbosity = verbosity;
        }
    }

    fn absolute_path(&mut self, map: &Map<'_>, key: &str, into: &mut PathBuf) {
        match map.text(key) {
            Some((path, _)) if path.starts_with('/') => *into = PathBuf::from(path),
            Some(("", _)) | None => {}
            Some((path, at)) => self.error(Some(at), key, format!("{path:?} is not an absolute path")),
        }
    }

    fn endpoint(&mut self, endpoint: &str, at: Option<Position>, key: &str, into: &mut PathBuf) {
        match endpoint.strip_prefix("unix://").unwrap_or(endpoint) {
            path if path.starts_with('/') => *into = PathBuf::from(path),
            _ => self.error(
                at,
                key,
                format!("{endpoint:?} is not a socket such as unix:///run/containerd/containerd.sock"),
            ),
        }
    }
}

/// Whether Go's encoder writes the value for an unset field, as in every file of kubeadm.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Text(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Int(0) => true,
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.iter().all(|entry| is_unset(&entry.node.value)),
        _ => false,
    }
}

fn is(plain: Plain, value: &Value) -> bool {
    match (plain, value) {
        (Plain::Bool(a), Value::Bool(b)) => a == *b,
        (Plain::Text(a), Value::Text(b)) => a == b,
        _ => false,
    }
}

/// The kind of document that has a key of that name.
fn kind_with(name: &str) -> Option<&'static str> {
    let kinds = [("KubeletConfiguration", KUBELET), ("LimpetConfiguration", LIMPET)];
    kinds.into_iter().find(|(_, keys)| keys.iter().any(|key| key.name == name)).map(|(kind, _)| kind)
}

fn most_similar(wrong: &str, keys: &[Key]) -> Option<&'static str> {
    let wrong = wrong.to_ascii_lowercase();
    let likeness = |key: &Key| strsim::jaro_winkler(&wrong, &key.name.to_ascii_lowercase());
    let best = keys.iter().map(|key| (likeness(key), key.name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= MIN_SIMILARITY).then_some(best.1)
}

#[cfg(test)]
mod tests;
