//! Credentials for registries, from a pod's pull secrets and Docker's `config.json`, matched as in kubelet's keyring.
//!
//! The files are read for every pull, so a changed password needs no restart, and no secret stays in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

use super::go_json::{self, Shape, always};
use limpet_model::object::ObjectRecord;
use limpet_model::pull_credential::{CredentialHash, PullCredential, PullSecret};

/// The largest `config.json` that is read.
const MAX_FILE: u64 = 1 << 20;

/// Padding is optional: Docker writes it, users may omit it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Credentials for a registry. The debug format shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// A user name and password.
    Password {
        user: String,
        /// Its password or access token.
        password: String,
    },
    /// A refresh token for OAuth2.
    IdentityToken(String),
}

/// The fields of kubelet's `AuthConfig` that its hash covers, in its order.
#[derive(Serialize)]
struct Hashed<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    identitytoken: &'a str,
}

impl Credentials {
    /// The hash that identifies them in the agent's records.
    fn hash(&self) -> CredentialHash {
        let hashed = match self {
            Self::Password { user, password } => Hashed { username: user, password, identitytoken: "" },
            Self::IdentityToken(token) => Hashed { username: "", password: "", identitytoken: token },
        };
        CredentialHash::new(&serde_json::to_vec(&hashed).unwrap_or_default())
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Password(..)",
            Self::IdentityToken(_) => "IdentityToken(..)",
        })
    }
}

/// The members of an entry.
const ENTRY: Shape = Shape::Struct(&[
    always("auth", Shape::Text),
    always("username", Shape::Text),
    always("password", Shape::Text),
    always("identitytoken", Shape::Text),
]);

/// The members of a `config.json`.
static DOCKER_CONFIG: Shape = Shape::Struct(&[
    always("auths", ENTRIES),
    always("credHelpers", Shape::Map(&Shape::Text)),
    always("credsStore", Shape::Text),
]);

/// The older format, which consists of the entries only.
static DOCKER_CFG: Shape = ENTRIES;

const ENTRIES: Shape = Shape::Map(&ENTRY);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    auths: HashMap<String, AuthEntry>,
    cred_helpers: HashMap<String, String>,
    creds_store: String,
}

#[derive(Deserialize)]
struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

impl AuthEntry {
    fn credentials(self) -> Option<Credentials> {
        if !self.identitytoken.is_empty() {
            return Some(Credentials::IdentityToken(self.identitytoken));
        }
        if !self.auth.is_empty() {
            // As in Go, line breaks are ignored.
            let encoded: String = self.auth.trim().chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            let decoded = String::from_utf8(BASE64.decode(encoded).ok()?).ok()?;
            let (user, password) = decoded.split_once(':')?;
            // Some tools pad with NUL.
            let (user, password) = (user.to_owned(), password.trim_end_matches('\0').to_owned());
            return Some(Credentials::Password { user, password });
        }
        (!self.username.is_empty()).then_some(Credentials::Password { user: self.username, password: self.password })
    }
}

/// Credentials with their registry and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// A registry, with globs, and a prefix of the repository.
    pub(super) pattern: String,
    pub(super) credentials: Credentials,
    pub(super) source: PullCredential,
}

/// Credentials in the order of their use.
#[derive(Default)]
pub(super) struct Keyring {
    /// In the order in which they are tried: file by file, the longest pattern first.
    entries: Vec<Candidate>,
    /// Messages about unusable entries.
    pub(super) complaints: Vec<String>,
}

impl Keyring {
    /// The credentials of pull secrets, then of the files, then of credential providers, in kubelet's order.
    pub(super) fn new(secrets: &[Arc<ObjectRecord>], files: &[PathBuf], provided: &[Candidate]) -> Self {
        let mut keyring = Self::default();
        for secret in secrets {
            keyring.add_secret(secret);
        }
        // Sorted across all secrets, the longest pattern first.
        keyring.entries.sort_by(|a, b| b.pattern.cmp(&a.pattern));
        let of_files = Self::read(files);
        keyring.entries.extend(of_files.entries);
        keyring.complaints.extend(of_files.complaints);
        let mut provided = provided.to_vec();
        provided.sort_by(|a, b| b.pattern.cmp(&a.pattern));
        keyring.entries.extend(provided);
        keyring
    }

    /// Adds the credentials of a Secret of one of the two types for credentials. Other Secrets, and those without the
    /// key, add none.
    fn add_secret(&mut self, secret: &ObjectRecord) {
        let (key, whole) = match &*secret.secret_type {
            "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", true),
            "kubernetes.io/dockercfg" => (".dockercfg", false),
            _ => {
                self.complaints.push(format!("{} is not of a type for registry credentials", secret.key));
                return;
            }
        };
        let Some(entry) = secret.data.get(key) else { return };
        let first = self.entries.len();
        let origin = secret.key.to_string();
        if whole {
            self.add(entry.bytes.expose(), &origin);
        } else {
            let auths: Result<HashMap<String, AuthEntry>, _> = go_json::read(entry.bytes.expose(), &DOCKER_CFG);
            match auths {
                Ok(auths) => self.add_entries(auths, &origin),
                Err(error) => self.complain(&error, &origin),
            }
        }
        for candidate in self.entries.iter_mut().skip(first) {
            candidate.source = PullCredential::Secret(PullSecret {
                uid: secret.uid.to_string(),
                namespace: secret.key.namespace.to_string(),
                name: secret.key.name.to_string(),
                hash: candidate.credentials.hash(),
            });
        }
    }

    /// Reads the files that exist; an invalid one is reported and does not affect the others.
    pub(super) fn read(files: &[PathBuf]) -> Self {
        let mut keyring = Self::default();
        for path in files {
            match read_file(path) {
                Ok(None) => {}
                Ok(Some(text)) => keyring.add(text.as_bytes(), &path.display().to_string()),
                Err(error) => keyring.complaints.push(format!("{}: {error}", path.display())),
            }
        }
        keyring
    }

    fn add(&mut self, text: &[u8], origin: &str) {
        let config: DockerConfig = match go_json::read(text, &DOCKER_CONFIG) {
            Ok(config) => config,
            Err(error) => return self.complain(&error, origin),
        };
        if !config.creds_store.is_empty() || !config.cred_helpers.is_empty() {
            self.complaints.push(format!("{origin}: credential helpers are not supported"));
        }
        self.add_entries(config.auths, origin);
    }

    fn add_entries(&mut self, auths: HashMap<String, AuthEntry>, origin: &str) {
        let mut candidates: Vec<Candidate> = Vec::new();
        for (key, entry) in auths {
            match entry.credentials() {
                Some(credentials) => {
                    candidates.push(Candidate { pattern: normal_key(&key), credentials, source: PullCredential::Node });
                }
                None => self.complaints.push(format!("{origin}: auths[{key:?}] has no usable credentials")),
            }
        }
        candidates.sort_by(|a, b| b.pattern.cmp(&a.pattern));
        self.entries.append(&mut candidates);
    }

    /// Reports only the position: serde's message may quote the value.
    fn complain(&mut self, error: &serde_json::Error, origin: &str) {
        let (line, column) = (error.line(), error.column());
        self.complaints.push(format!("{origin}: not docker's format at {line}:{column}"));
    }

    /// The credentials for `host` (`docker.io` for Docker Hub) and a repository. `turn` selects one of several: 0 is
    /// the first; beyond the last, the last is returned.
    pub(super) fn find(&self, host: &str, repository: &str, turn: usize) -> Option<&Candidate> {
        let all = self.all(host, repository);
        all.get(turn.min(all.len().saturating_sub(1))).copied()
    }

    /// The number of different credentials for a repository.
    pub(super) fn count(&self, host: &str, repository: &str) -> usize {
        self.all(host, repository).len()
    }

    fn all(&self, host: &str, repository: &str) -> Vec<&Candidate> {
        let mut distinct: Vec<&Candidate> = Vec::new();
        for candidate in self.candidates(host, repository) {
            if !distinct.iter().any(|earlier| earlier.credentials == candidate.credentials) {
                distinct.push(candidate);
            }
        }
        distinct
    }

    /// All credentials for a repository, including those that occur in several Secrets.
    pub(super) fn candidates(&self, host: &str, repository: &str) -> impl Iterator<Item = &Candidate> {
        let host = if is_docker_hub(host) { "index.docker.io" } else { host };
        self.entries.iter().filter(move |candidate| matches(&candidate.pattern, host, repository))
    }
}

fn read_file(path: &Path) -> Result<Option<String>, std::io::Error> {
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(text) if text.len() > MAX_FILE => Err(std::io::Error::other("larger than 1 MiB")),
        Ok(_) => std::fs::read_to_string(path).map(Some),
    }
}

fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// Normalizes a key: `https://index.docker.io/v1/` becomes `index.docker.io`; a path that is not the API's version is
/// kept.
pub(super) fn normal_key(key: &str) -> String {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = path.trim_end_matches('/');
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    let host = if is_docker_hub(host) { "index.docker.io" } else { host };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// kubelet's `URLsMatch`: the same number of labels, each matched by its glob; equal ports; the path is a prefix.
pub(super) fn matches(glob: &str, host: &str, repository: &str) -> bool {
    let (glob_host, glob_path) = glob.split_once('/').unwrap_or((glob, ""));
    let (glob_name, glob_port) = glob_host.split_once(':').unwrap_or((glob_host, ""));
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let labels = glob_name.split('.').count() == name.split('.').count()
        && glob_name.split('.').zip(name.split('.')).all(|(glob, label)| glob_match(glob.as_bytes(), label.as_bytes()));
    labels && glob_port == port && repository.starts_with(glob_path)
}

/// Matches `*` with any run of characters, `?` with any single one.
fn glob_match(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g, t));
                g += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => (g, t) = (g + 1, t + 1),
            _ => match star {
                Some((at, from)) => {
                    (g, t) = (at + 1, from + 1);
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
