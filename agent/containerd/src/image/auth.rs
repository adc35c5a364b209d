//! Credentials for registries, from a pod's pull secrets and docker's `config.json`, matched as in kubelet's keyring.
//!
//! The files are read for every pull: a changed password needs no restart, and no secret stays in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use limpet_model::object::ObjectRecord;

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
    /// A name and its password.
    Password {
        /// The account.
        user: String,
        /// Its password or access token.
        password: String,
    },
    /// A refresh token for OAuth2.
    IdentityToken(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Password(..)",
            Self::IdentityToken(_) => "IdentityToken(..)",
        })
    }
}

#[derive(Default, Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: HashMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    cred_helpers: HashMap<String, String>,
    #[serde(default, rename = "credsStore")]
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
}

impl Entry {
    fn credentials(self) -> Option<Credentials> {
        if !self.identitytoken.is_empty() {
            return Some(Credentials::IdentityToken(self.identitytoken));
        }
        if !self.auth.is_empty() {
            let decoded = String::from_utf8(BASE64.decode(self.auth.trim()).ok()?).ok()?;
            let (user, password) = decoded.split_once(':')?;
            // Some tools pad with NUL.
            let (user, password) = (user.to_owned(), password.trim_end_matches('\0').to_owned());
            return Some(Credentials::Password { user, password });
        }
        (!self.username.is_empty()).then_some(Credentials::Password { user: self.username, password: self.password })
    }
}

/// The credentials in the node's auth files.
#[derive(Default)]
pub(super) struct Keyring {
    /// Glob and its credentials, in the order they are tried: file by file, the longest first.
    entries: Vec<(String, Credentials)>,
    /// Messages about unusable entries.
    pub(super) complaints: Vec<String>,
}

impl Keyring {
    /// The credentials of pull secrets, then those of the files, then those that credential providers gave, in kubelet's order.
    pub(super) fn of(secrets: &[Arc<ObjectRecord>], files: &[PathBuf], provided: &[(String, Credentials)]) -> Self {
        let mut keyring = Self::default();
        for secret in secrets {
            keyring.add_secret(secret);
        }
        // All of the secrets together: the longest first.
        keyring.entries.sort_by(|(a, _), (b, _)| b.cmp(a));
        let of_files = Self::read(files);
        keyring.entries.extend(of_files.entries);
        keyring.complaints.extend(of_files.complaints);
        let mut provided = provided.to_vec();
        provided.sort_by(|(a, _), (b, _)| b.cmp(a));
        keyring.entries.extend(provided);
        keyring
    }

    /// Adds a Secret of one of the two types that hold credentials; one of another type, or without its key, has none.
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
        let origin = secret.key.to_string();
        if whole {
            self.add(entry.bytes.expose(), &origin);
        } else {
            let auths: Result<HashMap<String, Entry>, _> = serde_json::from_slice(entry.bytes.expose());
            match auths {
                Ok(auths) => self.add_entries(auths, &origin),
                Err(error) => self.complain(&error, &origin),
            }
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
        let config: DockerConfig = match serde_json::from_slice(text) {
            Ok(config) => config,
            Err(error) => return self.complain(&error, origin),
        };
        if config.creds_store.is_some_and(|store| !store.is_empty()) || !config.cred_helpers.is_empty() {
            self.complaints.push(format!("{origin}: credential helpers are not supported"));
        }
        self.add_entries(config.auths, origin);
    }

    fn add_entries(&mut self, auths: HashMap<String, Entry>, origin: &str) {
        let mut found: Vec<(String, Credentials)> = Vec::new();
        for (key, entry) in auths {
            match entry.credentials() {
                Some(credentials) => found.push((normal_key(&key), credentials)),
                None => self.complaints.push(format!("{origin}: auths[{key:?}] has no usable credentials")),
            }
        }
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        self.entries.append(&mut found);
    }

    /// Reports only the position: serde's message may quote the value.
    fn complain(&mut self, error: &serde_json::Error, origin: &str) {
        let (line, column) = (error.line(), error.column());
        self.complaints.push(format!("{origin}: not docker's format at {line}:{column}"));
    }

    /// The credentials for `host` (`docker.io` for Docker Hub) and a repository there. `turn`: of several, 0 is the first, 1
    /// the next; beyond the last one it is the last.
    pub(super) fn find(&self, host: &str, repository: &str, turn: usize) -> Option<&Credentials> {
        let found = self.all(host, repository);
        found.get(turn.min(found.len().saturating_sub(1))).copied()
    }

    /// The number of different credentials for a repository.
    pub(super) fn count(&self, host: &str, repository: &str) -> usize {
        self.all(host, repository).len()
    }

    fn all(&self, host: &str, repository: &str) -> Vec<&Credentials> {
        let host = if is_docker_hub(host) { "index.docker.io" } else { host };
        let mut found: Vec<&Credentials> = Vec::new();
        for (_, credentials) in self.entries.iter().filter(|(glob, _)| matches(glob, host, repository)) {
            if !found.contains(&credentials) {
                found.push(credentials);
            }
        }
        found
    }
}

fn read_file(path: &Path) -> Result<Option<String>, std::io::Error> {
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(found) if found.len() > MAX_FILE => Err(std::io::Error::other("larger than 1 MiB")),
        Ok(_) => std::fs::read_to_string(path).map(Some),
    }
}

fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// Normalises a key: `https://index.docker.io/v1/` is `index.docker.io`; a path that is not the API's version is retained.
pub(super) fn normal_key(key: &str) -> String {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = path.trim_end_matches('/');
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    let host = if is_docker_hub(host) { "index.docker.io" } else { host };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// kubelet's `URLsMatch`: as many labels, each by its glob; equal ports; the path is a prefix.
pub(super) fn matches(glob: &str, host: &str, repository: &str) -> bool {
    let (glob_host, glob_path) = glob.split_once('/').unwrap_or((glob, ""));
    let (glob_name, glob_port) = glob_host.split_once(':').unwrap_or((glob_host, ""));
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let labels = glob_name.split('.').count() == name.split('.').count()
        && glob_name.split('.').zip(name.split('.')).all(|(glob, label)| glob_match(glob.as_bytes(), label.as_bytes()));
    labels && glob_port == port && repository.starts_with(glob_path)
}

/// `*` is any run of characters, `?` any one.
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
mod tests {
    use super::*;

    fn keyring(text: &str) -> Keyring {
        let mut keyring = Keyring::default();
        keyring.add(text.as_bytes(), "config.json");
        keyring
    }

    fn user<'a>(keyring: &'a Keyring, host: &str, repository: &str) -> Option<&'a str> {
        match keyring.find(host, repository, 0)? {
            Credentials::Password { user, .. } => Some(user),
            Credentials::IdentityToken(token) => Some(token),
        }
    }

    #[test]
    fn keys_are_matched_as_kubelet_does() {
        let entry = |name: &str| format!(r#"{{"username": "{name}", "password": "p"}}"#);
        let table: &[(&str, &str, &str, bool)] = &[
            ("quay.io", "quay.io", "a/b", true),
            ("quay.io", "quay.io:443", "a/b", false),
            ("https://quay.io/v2/", "quay.io", "a/b", true),
            ("http://127.0.0.1:5000", "127.0.0.1:5000", "x", true),
            ("quay.io/a", "quay.io", "a/b", true),
            ("quay.io/a", "quay.io", "b/a", false),
            ("*.example.com", "r.example.com", "x", true),
            ("*.example.com", "a.r.example.com", "x", false),
            ("*.*.example.com", "a.r.example.com", "x", true),
            ("reg*.example.com:5000", "reg1.example.com:5000", "x", true),
            ("reg?.example.com", "reg.example.com", "x", false),
            ("*.example.com", "example.com", "x", false),
            ("https://index.docker.io/v1/", "docker.io", "library/busybox", true),
            ("docker.io", "registry-1.docker.io", "library/busybox", true),
            ("index.docker.io", "quay.io", "library/busybox", false),
        ];
        for (key, host, repository, wanted) in table {
            let ring = keyring(&format!(r#"{{"auths": {{"{key}": {}}}}}"#, entry("me")));
            assert_eq!(user(&ring, host, repository).is_some(), *wanted, "{key} {host}/{repository}");
        }
    }

    #[test]
    fn the_longest_key_wins() {
        let ring = keyring(
            r#"{"auths": {"q.io": {"username": "all"}, "q.io/team/app": {"username": "app"},
                "q.io/team": {"username": "team"}}}"#,
        );
        assert_eq!(user(&ring, "q.io", "team/app"), Some("app"));
        assert_eq!(user(&ring, "q.io", "team/other"), Some("team"));
        assert_eq!(user(&ring, "q.io", "x"), Some("all"));
    }

    #[test]
    fn every_form_of_credentials_is_read() {
        let ring = keyring(
            r#"{"auths": {"a": {"auth": "bWU6cGE6c3M="}, "b": {"auth": "bWU6cGE6c3M"}, "c": {"identitytoken": "tok"},
                "d": {"auth": "%%%"}, "e": {}}, "credsStore": "desktop"}"#,
        );
        let password = Credentials::Password { user: "me".into(), password: "pa:ss".into() };
        assert_eq!(ring.find("a", "x", 0), Some(&password));
        assert_eq!(ring.find("b", "x", 0), Some(&password));
        assert_eq!(ring.find("c", "x", 0), Some(&Credentials::IdentityToken("tok".into())));
        assert_eq!(ring.find("d", "x", 0), None);
        assert_eq!(ring.complaints.len(), 3, "{:?}", ring.complaints);
        assert!(!format!("{password:?}").contains("pa:ss"));
    }

    fn secret(kind: &str, key: &str, text: &str) -> Arc<ObjectRecord> {
        let value = serde_json::json!({"kind": "Secret", "metadata": {"name": "pull"},
            "type": format!("kubernetes.io/{kind}"), "stringData": {key: text}});
        let decoded =
            limpet_model::object::decode(&value, limpet_model::object::ObjectKind::Secret, Arc::from("f.yaml"));
        Arc::new(decoded.0.unwrap())
    }

    #[test]
    fn a_pods_own_credentials_come_before_the_nodes_and_those_before_the_providers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(
            &file,
            r#"{"auths": {"q.io/team/app": {"username": "node"}, "other.io": {"username": "node"}}}"#,
        )
        .unwrap();
        let json = secret("dockerconfigjson", ".dockerconfigjson", r#"{"auths": {"q.io": {"username": "json"}}}"#);
        let cfg = secret("dockercfg", ".dockercfg", r#"{"q.io/team": {"username": "cfg"}}"#);
        let provided = ["q.io", "q.io/team", "last.io"].map(|pattern| {
            let credentials = Credentials::Password { user: format!("plugin of {pattern}"), password: String::new() };
            (pattern.to_owned(), credentials)
        });
        let ring = Keyring::of(&[json, cfg], &[file], &provided);
        let name = |turn| match ring.find("q.io", "team/app", turn).unwrap() {
            Credentials::Password { user, .. } => user.as_str(),
            Credentials::IdentityToken(token) => token,
        };
        assert_eq!(
            ([name(0), name(1), name(2), name(3), name(9)], ring.count("q.io", "team/app")),
            (["cfg", "json", "node", "plugin of q.io/team", "plugin of q.io"], 5)
        );
        assert_eq!(user(&ring, "other.io", "x"), Some("node"));
        assert_eq!((ring.count("none.io", "x"), ring.find("none.io", "x", 0)), (0, None));
        assert_eq!(ring.complaints, Vec::<String>::new());
    }

    #[test]
    fn an_invalid_pull_secret_is_reported_without_its_values() {
        let other = secret("ssh-auth", "ssh-privatekey", "hunter2");
        let broken = secret("dockercfg", ".dockercfg", r#"{"q.io": {"username": ["hunter2"]}}"#);
        let ring = Keyring::of(&[other, broken], &[], &[]);
        let wanted = [
            "Secret default/pull is not of a type for registry credentials",
            "Secret default/pull: not docker's format at 1:22",
        ];
        assert_eq!(ring.complaints, wanted);
    }

    #[test]
    fn an_invalid_file_is_reported_without_its_content() {
        let ring = keyring(r#"{"auths": {"a": {"auth": 5, "password": "secret"}}"#);
        assert_eq!(ring.complaints.len(), 1);
        assert!(!ring.complaints[0].contains("secret"));
        let ring = Keyring::read(&["/nonexistent/config.json".into()]);
        assert!(ring.complaints.is_empty());
    }
}
