//! Kubeconfig files, read as client-go reads them and checked completely: an error names the file, the field and the
//! remedy.

mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, Kubeconfig};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::ExposeSecret as _;

use crate::proxy::Proxy;

/// The longest URL of a server.
const MAX_SERVER: usize = 4_096;
/// The form of URL that error messages ask for.
const EXAMPLE: &str = "https://10.0.0.1:6443";

#[derive(Debug, thiserror::Error)]
#[error("{}: {field}{message}", path.display())]
pub struct KubeconfigError {
    path: PathBuf,
    /// The field with `: `; empty if the error concerns the file itself.
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

/// The server URL of the file's current context. Reads all files that the kubeconfig names; connects to nothing and
/// runs nothing. Blocks.
///
/// # Errors
///
/// The first error, with file, field and remedy.
pub fn check(path: &Path) -> Result<String, KubeconfigError> {
    read(path).map(|settings| settings.server.to_string())
}

/// Whether a program provides the current user's credentials. Blocks.
///
/// # Errors
///
/// As [`check`].
pub fn runs_program(path: &Path) -> Result<bool, KubeconfigError> {
    Ok(read(path)?.user.exec.is_some())
}

/// The client certificate of a kubeconfig's current user.
#[derive(Debug)]
pub struct UserCertificate {
    pub pem: Vec<u8>,
    /// Whether it is embedded in the kubeconfig (`client-certificate-data`) instead of a separate file.
    pub is_embedded: bool,
}

/// The current user's client certificate; `None` if the user authenticates in another way. Blocks.
///
/// # Errors
///
/// As [`check`].
pub fn certificate(path: &Path) -> Result<Option<UserCertificate>, KubeconfigError> {
    let AuthInfo { client_certificate, client_certificate_data, .. } = read(path)?.user;
    if let Some(data) = client_certificate_data {
        let pem = decoded(path, "client-certificate-data", &data)?;
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

/// A kubeconfig for the same server as `bootstrap`'s, for the node whose certificate and key are in that file.
/// Blocks.
///
/// # Errors
///
/// As [`check`].
pub fn for_node(bootstrap: &Path, certificate: &Path) -> Result<String, KubeconfigError> {
    let (cluster, _) = current(bootstrap, &file::read(bootstrap)?)?;
    let file = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default-context",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "contexts": [{ "name": "default-context", "context": { "cluster": "default-cluster", "user": "default-auth" } }],
        "users": [{ "name": "default-auth", "user": user(certificate) }],
    });
    // JSON is also YAML.
    Ok(format!("{file:#}\n"))
}

/// A user's certificate and key in PEM; `None` if the user authenticates in another way. Blocks.
///
/// # Errors
///
/// The certificate or the key cannot be read.
pub(crate) fn identity(path: &Path, user: &AuthInfo) -> Result<Option<Vec<u8>>, KubeconfigError> {
    let part = |name: &str, data: Option<&str>, file: &Option<String>| match (data, file) {
        (Some(data), _) => decoded(path, &format!("{name}-data"), data).map(Some),
        (None, Some(file)) => readable(path, name, file).map(Some),
        (None, None) => Ok(None),
    };
    let certificate = part("client-certificate", user.client_certificate_data.as_deref(), &user.client_certificate)?;
    let key = user.client_key_data.as_ref().map(|key| key.expose_secret());
    let key = part("client-key", key, &user.client_key)?;
    Ok(key.zip(certificate).map(|(key, certificate)| [key, certificate].join(&b'\n')))
}

/// The server and client settings of a kubeconfig's current context.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: Uri,
    /// The server's URL as it is shown.
    pub(crate) server: Arc<str>,
    /// The proxy to the server; `None` if there is none.
    pub(crate) proxy: Option<Proxy>,
    /// The DER certificates of the server's authorities; `None` to use the system's.
    pub(crate) authorities: Option<Vec<Vec<u8>>>,
    /// `insecure-skip-tls-verify`.
    pub(crate) accepts_any_server: bool,
    /// The name in the server's certificate; `None` to use the URL's.
    pub(crate) tls_server_name: Option<String>,
    pub(crate) user: AuthInfo,
}

/// Reads the file and the files it names. Blocks.
pub(crate) fn read(path: &Path) -> Result<Settings, KubeconfigError> {
    let (cluster, user) = current(path, &file::read(path)?)?;
    if let Some((name, user)) = &user {
        check_user(path, name, user)?;
    }
    let mut user = user.map(|(_, user)| user).unwrap_or_default();
    let (url, server) = check_cluster(path, &cluster, &user)?;
    let proxy = proxy(path, &cluster)?;
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        let cluster = ExecAuthCluster::try_from(&cluster);
        exec.cluster = Some(cluster.map_err(|error| KubeconfigError::file(path, one_line(&error)))?);
    }
    Ok(Settings {
        url,
        server: server.into(),
        proxy,
        authorities: authorities(path, &cluster)?,
        accepts_any_server: cluster.insecure_skip_tls_verify.unwrap_or_default(),
        tls_server_name: cluster.tls_server_name,
        user,
    })
}

/// The cluster and the user of the current context, the user with its name.
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
    // As in client-go, a missing user has no name and no credentials.
    let user = context.user.and_then(|name| {
        let named = file.auth_infos.iter().find(|named| named.name == name)?;
        Some((name, named.auth_info.clone().unwrap_or_default()))
    });
    Ok((cluster, user))
}

/// The server's URL, and its displayed form.
fn check_cluster(path: &Path, cluster: &Cluster, user: &AuthInfo) -> Result<(Uri, String), KubeconfigError> {
    let wrong = |message: String| KubeconfigError::field(path, "cluster.server", message);
    let server = cluster.server.clone();
    let server = server.ok_or_else(|| wrong(format!("is not set; it is a URL such as {EXAMPLE}")))?;
    let (url, server) = url(&server, has_tls(cluster, user))
        .ok_or_else(|| wrong(format!("{server:?} is not a URL such as {EXAMPLE}")))?;
    if server.len() > MAX_SERVER {
        return Err(wrong(format!("has more than {MAX_SERVER} characters; it is a URL such as {EXAMPLE}")));
    }
    Ok((url, server))
}

/// The proxy to the server; `None` if there is none.
fn proxy(path: &Path, cluster: &Cluster) -> Result<Option<Proxy>, KubeconfigError> {
    let proxy = cluster.proxy_url.as_deref().filter(|url| !url.is_empty()).map(Proxy::parse).transpose();
    proxy.map_err(|message| KubeconfigError::field(path, "cluster.proxy-url", message))
}

/// The URL of a server, which may lack a scheme; as in client-go the scheme then depends on `tls`.
fn url(server: &str, tls: bool) -> Option<(Uri, String)> {
    let given = server.parse::<Uri>().ok().filter(|url| url.scheme().is_some());
    let (url, server) = match given {
        Some(url) => (url, server.to_owned()),
        None => {
            let server = format!("{}://{server}", if tls { "https" } else { "http" });
            (server.parse::<Uri>().ok().filter(|url| url.path() == "/" && url.query().is_none())?, server)
        }
    };
    let is_one = matches!(url.scheme_str(), Some("https" | "http")) && url.host().is_some_and(|host| !host.is_empty());
    is_one.then_some((url, server))
}

/// Whether the kubeconfig implies that the server uses TLS.
fn has_tls(cluster: &Cluster, user: &AuthInfo) -> bool {
    cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true)
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// The DER certificates of the cluster's authorities; `None` to use the system's.
fn authorities(path: &Path, cluster: &Cluster) -> Result<Option<Vec<Vec<u8>>>, KubeconfigError> {
    const FIELD: &str = "cluster.certificate-authority";
    let (field, pem) = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => {
            let field = format!("{FIELD}-data");
            let pem = decoded(path, &field, data)?;
            (field, pem)
        }
        (None, Some(file)) => (FIELD.to_owned(), readable(path, FIELD, file)?),
        (None, None) => return Ok(None),
    };
    // As in Go, an unreadable certificate does not invalidate the others.
    let certificates = CertificateDer::pem_slice_iter(&pem).map_while(Result::ok);
    let usable = certificates.filter(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    let certificates: Vec<_> = usable.map(|certificate| certificate.to_vec()).collect();
    if certificates.is_empty() {
        return Err(KubeconfigError::field(path, field, "contains no certificate in PEM that can be used"));
    }
    Ok(Some(certificates))
}

fn decoded(path: &Path, field: &str, data: &str) -> Result<Vec<u8>, KubeconfigError> {
    let bytes = BASE64_STANDARD.decode(data);
    bytes.map_err(|error| KubeconfigError::field(path, field, format!("is not base64: {error}")))
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
        ("tokenFile", &user.token_file, user.token.is_some()),
    ];
    for (name, file, has_data) in files {
        if let Some(file) = file.as_ref().filter(|_| !has_data) {
            readable(path, &field(name), file)?;
        }
    }
    if let Some(data) = &user.client_certificate_data {
        decoded(path, &field("client-certificate-data"), data)?;
    }
    if let Some(data) = &user.client_key_data {
        decoded(path, &field("client-key-data"), data.expose_secret())?;
    }
    Ok(())
}

/// The content of a file that the kubeconfig names.
fn readable(path: &Path, field: &str, file: &str) -> Result<Vec<u8>, KubeconfigError> {
    let text = std::fs::read(file)
        .map_err(|error| KubeconfigError::field(path, field, format!("cannot read {file}: {error}")))?;
    if text.is_empty() {
        return Err(KubeconfigError::field(path, field, format!("{file} is empty")));
    }
    Ok(text)
}

/// The error without an excerpt of the file, which may contain a token.
fn one_line(error: &dyn std::error::Error) -> String {
    let text = limpet_model::error_chain::error_chain(error);
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
