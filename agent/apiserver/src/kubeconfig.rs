//! Kubeconfig files, checked in full: an error names the file, the field and the remedy.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Cluster, Config, Kubeconfig};

use crate::proxy::Proxy;

/// What is wrong with a kubeconfig.
#[derive(Debug, thiserror::Error)]
#[error("{}: {field}{message}", path.display())]
pub struct KubeconfigError {
    path: PathBuf,
    /// The field with `: `; empty when it is the file itself.
    field: String,
    message: String,
}

impl KubeconfigError {
    fn file(path: &Path, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), field: String::new(), message: message.into() }
    }

    fn field(path: &Path, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), field: format!("{}: ", field.into()), message: message.into() }
    }
}

/// The server that the file's current context leads to: its URL. Reads all files that the kubeconfig names; connects to
/// nothing and runs nothing. Blocks.
///
/// # Errors
/// The first thing that is wrong, with file, field and remedy.
pub fn check(path: &Path) -> Result<String, KubeconfigError> {
    read(path).map(|read| read.server)
}

/// Whether a program gives the credentials of the current user. Blocks.
///
/// # Errors
/// As [`check`].
pub fn runs_program(path: &Path) -> Result<bool, KubeconfigError> {
    Ok(read(path)?.config.auth_info.exec.is_some())
}

/// The client certificate of a kubeconfig's current user.
#[derive(Debug)]
pub struct UserCertificate {
    /// PEM.
    pub pem: Vec<u8>,
    /// It is in the kubeconfig (`client-certificate-data`) and not in a file of its own.
    pub is_embedded: bool,
}

/// The client certificate of the current user; `None`: it has another way to name itself. Blocks.
///
/// # Errors
/// As [`check`].
pub fn certificate(path: &Path) -> Result<Option<UserCertificate>, KubeconfigError> {
    let Read { config, .. } = read(path)?;
    let AuthInfo { client_certificate, client_certificate_data, .. } = config.auth_info;
    if let Some(data) = client_certificate_data {
        let decoded = BASE64_STANDARD.decode(data.trim());
        let pem = decoded.map_err(|error| {
            KubeconfigError::field(path, "client-certificate-data", format!("is not base64: {error}"))
        })?;
        return Ok(Some(UserCertificate { pem, is_embedded: true }));
    }
    let Some(file) = client_certificate else { return Ok(None) };
    let pem = std::fs::read(&file)
        .map_err(|error| KubeconfigError::field(path, "client-certificate", format!("cannot read {file}: {error}")))?;
    Ok(Some(UserCertificate { pem, is_embedded: false }))
}

/// A user whose certificate and key are in one file.
pub(crate) fn user(certificate: &Path) -> AuthInfo {
    let file = Some(certificate.display().to_string());
    AuthInfo { client_certificate: file.clone(), client_key: file, ..AuthInfo::default() }
}

/// The text of a kubeconfig that leads where `bootstrap` does, for the node whose certificate and key are in that file.
/// Blocks.
///
/// # Errors
/// As [`check`].
pub fn for_node(bootstrap: &Path, certificate: &Path) -> Result<String, KubeconfigError> {
    let file = Kubeconfig::read_from(bootstrap)
        .map_err(|error| KubeconfigError::file(bootstrap, format!("is not a kubeconfig: {}", one_line(&error))))?;
    let (cluster, _) = current(bootstrap, &file)?;
    let file = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default-context",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "contexts": [{ "name": "default-context", "context": { "cluster": "default-cluster", "user": "default-auth" } }],
        "users": [{ "name": "default-auth", "user": user(certificate) }],
    });
    // JSON is YAML, too.
    Ok(format!("{file:#}\n"))
}

/// A kubeconfig as it was read.
pub(crate) struct Read {
    /// The settings of a client.
    pub(crate) config: Config,
    /// The server's URL.
    pub(crate) server: String,
    /// How it is reached; `None`: directly.
    pub(crate) proxy: Option<Proxy>,
}

/// Reads the file and what it names. Blocks.
pub(crate) fn read(path: &Path) -> Result<Read, KubeconfigError> {
    std::fs::metadata(path).map_err(|error| KubeconfigError::file(path, remedy_of_file(&error)))?;
    let kubeconfig = Kubeconfig::read_from(path)
        .map_err(|error| KubeconfigError::file(path, format!("is not a kubeconfig: {}", one_line(&error))))?;
    let (cluster, user) = current(path, &kubeconfig)?;
    let (server, proxy) = check_cluster(path, &cluster)?;
    if let Some((name, user)) = user {
        check_user(path, &name, &user)?;
    }
    let mut config = Config::try_from(kubeconfig).map_err(|error| KubeconfigError::file(path, one_line(&error)))?;
    // Whoever sends a request decides about the next try.
    config.default_retry = false;
    Ok(Read { config, server, proxy })
}

fn remedy_of_file(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            "there is no such file; write one (kubeadm and k3s do), or start without --kubeconfig".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}

/// The cluster and the user of the current context, the latter with its name.
fn current(path: &Path, file: &Kubeconfig) -> Result<(Cluster, Option<(String, AuthInfo)>), KubeconfigError> {
    let name = file.current_context.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        KubeconfigError::field(path, "current-context", "is not set; name one of the contexts of the file")
    })?;
    let context = file.contexts.iter().find(|named| named.name == name).and_then(|named| named.context.clone());
    let context = context.ok_or_else(|| {
        let known: Vec<&str> = file.contexts.iter().map(|named| named.name.as_str()).collect();
        let message = format!("{name:?} is not a context of the file: {}", known.join(", "));
        KubeconfigError::field(path, "current-context", message)
    })?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.clone()).ok_or_else(|| {
        let message = format!("{:?} is not a cluster of the file", context.cluster);
        KubeconfigError::field(path, format!("contexts[{name}].context.cluster"), message)
    })?;
    let Some(user) = context.user.filter(|user| !user.is_empty()) else { return Ok((cluster, None)) };
    let found = file.auth_infos.iter().find(|named| named.name == user).and_then(|named| named.auth_info.clone());
    match found {
        Some(found) => Ok((cluster, Some((user, found)))),
        None => {
            let message = format!("{user:?} is not a user of the file");
            Err(KubeconfigError::field(path, format!("contexts[{name}].context.user"), message))
        }
    }
}

fn check_cluster(path: &Path, cluster: &Cluster) -> Result<(String, Option<Proxy>), KubeconfigError> {
    let server = cluster.server.clone().filter(|server| !server.is_empty()).ok_or_else(|| {
        KubeconfigError::field(path, "cluster.server", "is not set; it is a URL such as https://10.0.0.1:6443")
    })?;
    let url = server.parse::<hyper::Uri>().ok().filter(|url| {
        matches!(url.scheme_str(), Some("https" | "http")) && url.host().is_some_and(|host| !host.is_empty())
    });
    if url.is_none() {
        let message = format!("{server:?} is not a URL such as https://10.0.0.1:6443");
        return Err(KubeconfigError::field(path, "cluster.server", message));
    }
    let proxy = cluster.proxy_url.as_deref().filter(|url| !url.is_empty()).map(Proxy::parse).transpose();
    let proxy = proxy.map_err(|message| KubeconfigError::field(path, "cluster.proxy-url", message))?;
    if cluster.certificate_authority_data.is_none()
        && let Some(file) = &cluster.certificate_authority
    {
        readable(path, "cluster.certificate-authority", file)?;
    }
    Ok((server, proxy))
}

fn check_user(path: &Path, name: &str, user: &AuthInfo) -> Result<(), KubeconfigError> {
    let field = |field: &str| format!("users[{name}].user.{field}");
    let certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    let key = user.client_key.is_some() || user.client_key_data.is_some();
    match (certificate, key) {
        (true, false) => {
            return Err(KubeconfigError::field(path, field("client-key"), "is not set; the certificate needs its key"));
        }
        (false, true) => {
            let message = "is not set; the key needs its certificate";
            return Err(KubeconfigError::field(path, field("client-certificate"), message));
        }
        _ => {}
    }
    if user.auth_provider.is_some() {
        let message = "is not supported; use a client certificate, a token, a tokenFile or exec";
        return Err(KubeconfigError::field(path, field("auth-provider"), message));
    }
    let files = [
        ("client-certificate", &user.client_certificate, user.client_certificate_data.is_some()),
        ("client-key", &user.client_key, user.client_key_data.is_some()),
        ("tokenFile", &user.token_file, false),
    ];
    for (name, file, has_data) in files {
        if let Some(file) = file.as_ref().filter(|_| !has_data) {
            readable(path, &field(name), file)?;
        }
    }
    Ok(())
}

/// Whether a file that the kubeconfig names can be read.
fn readable(path: &Path, field: &str, file: &str) -> Result<(), KubeconfigError> {
    let text = std::fs::read(file)
        .map_err(|error| KubeconfigError::field(path, field, format!("cannot read {file}: {error}")))?;
    if text.is_empty() {
        return Err(KubeconfigError::field(path, field, format!("{file} is empty")));
    }
    Ok(())
}

/// An error without the excerpt of the file that some have: it may show a token.
fn one_line(error: &dyn std::error::Error) -> String {
    let text = limpet_model::error_chain::error_chain(error);
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WHOLE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: edge\n\
        contexts: [{name: edge, context: {cluster: lab, user: node}}]\n\
        clusters: [{name: lab, cluster: {server: https://192.0.2.1:6443}}]\n\
        users: [{name: node, user: {token: secret-token}}]\n";

    fn outcome(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        match check(&path) {
            Ok(server) => server,
            Err(error) => error.to_string().replace(&format!("{}/", dir.path().display()), ""),
        }
    }

    #[test]
    fn faults_are_reported_with_file_field_and_remedy() {
        let table = [
            ("edge\n", "edge\n", "https://192.0.2.1:6443"),
            (
                "current-context: edge\n",
                "",
                "kubeconfig: current-context: is not set; name one of the contexts of the file",
            ),
            (
                "current-context: edge",
                "current-context: far",
                "kubeconfig: current-context: \"far\" is not a context of the file: edge",
            ),
            (
                "cluster: lab",
                "cluster: none",
                "kubeconfig: contexts[edge].context.cluster: \"none\" is not a cluster of the file",
            ),
            ("user: node", "user: none", "kubeconfig: contexts[edge].context.user: \"none\" is not a user of the file"),
            (
                "https://192.0.2.1:6443",
                "''",
                "kubeconfig: cluster.server: is not set; it is a URL such as https://10.0.0.1:6443",
            ),
            (
                "https://192.0.2.1:6443",
                "192.0.2.1:6443",
                "kubeconfig: cluster.server: \"192.0.2.1:6443\" is not a URL such as https://10.0.0.1:6443",
            ),
            (
                "6443}",
                "6443, proxy-url: ftp://p}",
                "kubeconfig: cluster.proxy-url: has the scheme \"ftp\"; use http, https or socks5",
            ),
            ("6443}", "6443, proxy-url: 'socks5://p'}", "https://192.0.2.1:6443"),
            ("6443}", "6443, proxy-url: ''}", "https://192.0.2.1:6443"),
            (
                "6443}",
                "6443, certificate-authority: ca.crt}",
                "kubeconfig: cluster.certificate-authority: cannot read ca.crt: No such file or directory (os error 2)",
            ),
            (
                "token: secret-token",
                "tokenFile: token",
                "kubeconfig: users[node].user.tokenFile: cannot read token: No such file or directory (os error 2)",
            ),
            (
                "token: secret-token",
                "client-certificate-data: YQ==",
                "kubeconfig: users[node].user.client-key: is not set; the certificate needs its key",
            ),
            (
                "token: secret-token",
                "client-key-data: YQ==",
                "kubeconfig: users[node].user.client-certificate: is not set; the key needs its certificate",
            ),
        ];
        for (from, to, expected) in table {
            assert_eq!(outcome(&WHOLE.replace(from, to)), expected, "{to}");
        }
    }

    #[test]
    fn what_is_no_kubeconfig_is_named_without_its_content() {
        assert_eq!(outcome(WHOLE), "https://192.0.2.1:6443");
        let output = outcome("current-context: [secret-token\n");
        assert!(
            output.starts_with("kubeconfig: is not a kubeconfig: ") && !output.contains("secret-token"),
            "{output}"
        );
        let missing = check(Path::new("/nowhere/kubeconfig")).unwrap_err().to_string();
        assert!(missing.starts_with("/nowhere/kubeconfig: there is no such file; "), "{missing}");
    }
}
