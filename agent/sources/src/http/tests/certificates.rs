//! The source over TLS, with CAs and certificates created for each test.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use super::server::{Reply, Server};
use super::{Bench, list, settings, wait_for};
use crate::http::{Address, HttpSettings};

/// A certificate and its key, as PEM.
struct Pair {
    certificate: String,
    key: String,
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A server's configuration; clients must authenticate with a certificate of `clients`.
    fn server(&self, clients: Option<&Self>, change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        let _ = crypto::ring::default_provider().install_default();
        let pair = self.issue("127.0.0.1", change);
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
                builder.with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build().unwrap())
            }
        };
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        builder.with_single_cert(vec![certificate], key).unwrap()
    }
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// Replaces a file atomically.
fn put(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn over_tls(server: &Server, ca_file: PathBuf) -> HttpSettings {
    let address = Address::parse(&format!("https://127.0.0.1:{}/pods", server.port)).unwrap();
    HttpSettings { address, ca_file: Some(ca_file), ..settings("http://x/") }
}

#[tokio::test]
async fn the_configured_ca_is_trusted_and_a_changed_client_certificate_is_reread() {
    let (authority, fleet) = (Authority::new(), Authority::new());
    let server = Server::start_tls(authority.server(Some(&fleet), |_| {}), |_| Reply::ok(list(&[("a", "x:1")]))).await;
    let files = tempfile::tempdir().unwrap();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| files.path().join(name));
    put(&ca, &authority.pem());
    let first = fleet.issue("edge1", |_| {});
    put(&cert, &first.certificate);
    put(&key, &first.key);
    let mut bench = Bench::new();
    bench.start(HttpSettings { client_files: Some((cert.clone(), key.clone())), ..over_tls(&server, ca) });
    bench.until_good(&["a-edge1 x:1"]).await;
    assert_eq!(server.requests()[0].certificate, Some(der(&first.certificate)));

    // Half of a new pair, then a truncated one: the first one stays in use.
    let second = fleet.issue("edge1", |_| {});
    put(&cert, &second.certificate);
    let before = server.requests().len();
    wait_for(|| server.requests().len() > before + 2).await;
    assert_eq!(server.requests().last().unwrap().certificate, Some(der(&first.certificate)));
    put(&cert, &second.certificate[..100]);
    let before = server.requests().len();
    wait_for(|| server.requests().len() > before + 2).await;
    put(&cert, &second.certificate);
    put(&key, &second.key);
    wait_for(|| server.requests().last().unwrap().certificate == Some(der(&second.certificate))).await;
    bench.until_good(&["a-edge1 x:1"]).await;
    assert!(bench.seen.lock().unwrap().iter().all(|snapshot| snapshot.health == limpet_core::source::Health::Good));
    bench.stop().await;
}

#[tokio::test]
async fn invalid_certificates_are_reported_and_remove_no_pod() {
    let authority = Authority::new();
    let good = || authority.server(None, |_| {});
    let server = Server::start_tls(good(), |_| Reply::ok(list(&[("a", "x:1")]))).await;
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    put(&ca, &authority.pem());
    let mut bench = Bench::new();
    bench.start(over_tls(&server, ca.clone()));
    bench.until_good(&["a-edge1 x:1"]).await;
    let table = [
        (authority.server(None, |params| params.not_before = date_time_ymd(3000, 1, 1)), "clock says"),
        (authority.server(None, |params| params.not_after = date_time_ymd(1990, 1, 1)), "has expired"),
        (Authority::new().server(None, |_| {}), "staticPodURLCAFile"),
        (authority.server(Some(&authority), |_| {}), ""),
    ];
    for (config, expected) in table {
        server.identity(config);
        let (reason, snapshot) = bench.until_unavailable().await;
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(super::shape(&snapshot), ["a-edge1 x:1"]);
        server.identity(good());
        bench.until_good(&["a-edge1 x:1"]).await;
    }
    // The CA file changes: the new one is used without a restart.
    let next = Authority::new();
    server.identity(next.server(None, |_| {}));
    bench.until_unavailable().await;
    put(&ca, &next.pem());
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    // Without a usable file nothing is requested, and the reason is reported.
    std::fs::remove_file(&ca).unwrap();
    bench.start(over_tls(&server, ca));
    let (reason, snapshot) = bench.until_unavailable().await;
    assert!(reason.contains("ca.pem") && super::shape(&snapshot).len() == 1, "{reason}");
    bench.stop().await;
}

#[tokio::test]
async fn a_server_whose_own_certificate_is_the_ca_is_accepted() {
    let _ = crypto::ring::default_provider().install_default();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private);
    let server = Server::start_tls(config.unwrap(), |_| Reply::ok(list(&[("a", "x:1")]))).await;
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    put(&ca, &certificate.pem());
    let mut bench = Bench::new();
    bench.start(over_tls(&server, ca));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
}

/// An attacker must not downgrade the node from TLS to plain HTTP.
#[tokio::test]
async fn a_redirect_from_https_to_http_is_not_followed() {
    let authority = Authority::new();
    let plain = Server::start(|_| Reply::ok(list(&[("a", "x:1")]))).await;
    let elsewhere = plain.url("/pods");
    let redirect = move |_: &super::RecordedRequest| Reply::new("302 Found", &format!("Location: {elsewhere}\r\n"), "");
    let server = Server::start_tls(authority.server(None, |_| {}), redirect).await;
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    put(&ca, &authority.pem());
    let mut bench = Bench::new();
    bench.start(over_tls(&server, ca));
    let (reason, _) = bench.until_unavailable().await;
    assert!(reason.contains("which is not followed") && plain.requests().is_empty(), "{reason}");
    bench.stop().await;
}

/// Passes the URL to a child process that trusts the content of its `SSL_CERT_FILE`.
const INSIDE: &str = "LIMPET_TEST_SYSTEM_AUTHORITY";

#[tokio::test]
async fn without_a_configured_ca_the_systems_are_trusted() {
    if let Ok(url) = std::env::var(INSIDE) {
        let mut bench = Bench::new();
        bench.start(settings(&url));
        bench.until_good(&["a-edge1 x:1"]).await;
        return bench.stop().await;
    }
    let authority = Authority::new();
    let server = Server::start_tls(authority.server(None, |_| {}), |_| Reply::ok(list(&[("a", "x:1")]))).await;
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    put(&ca, &authority.pem());
    let mut inside = std::process::Command::new(std::env::current_exe().unwrap());
    inside.args([std::thread::current().name().unwrap(), "--exact", "--nocapture"]);
    inside.env("SSL_CERT_FILE", &ca).env(INSIDE, server.url("/pods").replace("http:", "https:"));
    let output = tokio::task::spawn_blocking(move || inside.output()).await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
