//! Which certificates are admitted, and files that change under a running server.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;

use super::super::permission::Standing;
use super::handshake_limit::MAX_HANDSHAKE;
use super::*;
use crate::settings::AuthorizationMode;
use tempfile::TempDir;

type Authority = CertifiedIssuer<'static, KeyPair>;
type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A client certificate of this authority.
fn client(authority: &Authority, name: &str, group: &str) -> Pair {
    changed_client(authority, name, group, |_| {})
}

fn changed_client(authority: &Authority, name: &str, group: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    change(&mut params);
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

struct Server {
    dir: TempDir,
    tls: Arc<Tls>,
}

impl Server {
    fn new(change: impl FnOnce(&mut ServerSettings)) -> Self {
        let dir = TempDir::new().unwrap();
        let mut config = ServedNode { pki_dir: dir.path().join("pki"), ..crate::fixtures::settings() };
        config.server.client_ca = Some(dir.path().join("ca.crt"));
        config.server.allowed_names = vec!["apiserver".to_owned(), "group:readers".to_owned()];
        change(&mut config.server);
        let gate = Gate::new(config.server.clone(), Arc::from("edge1"), None);
        Self { tls: Arc::new(Tls::new(&config, &Arc::from("edge1"), gate)), dir }
    }

    fn trust(&self, authority: &Authority) {
        std::fs::write(self.dir.path().join("ca.crt"), authority.pem()).unwrap();
    }

    /// Connects. Returns the caller that the server identifies, or the errors of both sides.
    async fn meet(&self, pair: Option<Pair>) -> Result<Caller, String> {
        self.meet_by(&[&version::TLS13, &version::TLS12], pair).await
    }

    /// The same, with one of these versions of TLS.
    async fn meet_by(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        pair: Option<Pair>,
    ) -> Result<Caller, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = Arc::clone(&self.tls);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut stream, caller) = tls.accept(stream).await.map_err(|error| error.to_string())?;
            stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
            Ok(caller)
        });
        let (certificate, _) = self_signed::ensure(&self.dir.path().join("pki"), "edge1").unwrap();
        let connector = TlsConnector::from(Arc::new(client_config(&certificate, versions, pair)));
        let stream = TcpStream::connect(address).await.unwrap();
        if let Ok(mut stream) = connector.connect(ServerName::try_from("edge1").unwrap(), stream).await {
            let _ = stream.read(&mut [0; 5]).await;
        }
        serving.await.unwrap()
    }
}

/// A client that trusts only the server's self-signed certificate.
fn client_config(
    server: &Path,
    versions: &[&'static rustls::SupportedProtocolVersion],
    pair: Option<Pair>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    match pair {
        // Skips the builder's check that certificate and key match.
        Some((chain, key)) => {
            let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
        }
        None => builder.with_no_client_auth(),
    }
}

/// Whether the caller's certificate names a user, and whether it is admitted.
fn standing(caller: &Caller) -> (bool, bool) {
    let Caller::Network(client) = caller else { panic!("{caller:?}") };
    (client.is_named(), client.standing() == Standing::Admitted)
}

#[tokio::test]
async fn a_certificate_names_its_user_and_only_listed_ones_are_admitted() {
    let (trusted, foreign) = (authority(), authority());
    let server = Server::new(|_| {});
    server.trust(&trusted);
    let expired = changed_client(&trusted, "apiserver", "", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let of_a_server = changed_client(&trusted, "apiserver", "", |params| {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    });
    let table = [
        (Some(client(&trusted, "apiserver", "system:masters")), (true, true)),
        (Some(client(&trusted, "anna", "readers")), (true, true)),
        (Some(client(&trusted, "system:node:edge2", "system:nodes")), (true, false)),
        (Some(client(&trusted, "", "readers")), (false, false)),
        (Some(client(&foreign, "apiserver", "system:masters")), (false, false)),
        (Some(expired), (false, false)),
        (Some(of_a_server), (false, false)),
        (None, (false, false)),
    ];
    for (pair, expected) in table {
        assert_eq!(standing(&server.meet(pair).await.unwrap()), expected);
    }
}

#[tokio::test]
async fn a_certificate_of_another_key_has_no_connection() {
    let trusted = authority();
    let server = Server::new(|_| {});
    server.trust(&trusted);
    for version in [&version::TLS12, &version::TLS13] {
        let (chain, key) = client(&trusted, "apiserver", "system:masters");
        let stolen = (chain.clone(), client(&trusted, "apiserver", "system:masters").1);
        assert_eq!(
            standing(&server.meet_by(&[version], Some((chain, key))).await.unwrap()),
            (true, true),
            "{version:?}"
        );
        let refused = server.meet_by(&[version], Some(stolen)).await.unwrap_err();
        assert!(refused.contains("BadSignature"), "{version:?}: {refused}");
    }
}

/// rustls alone would buffer 64 KiB of it.
#[tokio::test]
async fn a_handshake_has_a_bounded_size() {
    let authority = authority();
    let server = Server::new(|_| {});
    server.trust(&authority);
    let (chain, key) = client(&authority, "apiserver", "system:masters");
    let with_bytes = |bytes: usize| (vec![chain[0].clone(); bytes / chain[0].len()], key.clone_key());
    assert_eq!(standing(&server.meet(Some(with_bytes(MAX_HANDSHAKE / 2))).await.unwrap()), (true, true));
    let refused = server.meet(Some(with_bytes(MAX_HANDSHAKE * 2))).await.unwrap_err();
    assert!(refused.contains("the TLS handshake has more than 16384 bytes"), "{refused}");
}

/// A stored session would hold data from a client without credentials.
#[tokio::test]
async fn no_session_is_stored() {
    let server = Server::new(|_| {});
    server.trust(&authority());
    let config = server.tls.current().unwrap().config;
    assert!(!config.session_storage.can_cache() && config.send_tls13_tickets == 0);
}

#[tokio::test]
async fn a_client_that_knows_none_of_the_chosen_key_exchanges_has_no_connection() {
    let authority = authority();
    let server = Server::new(|settings| settings.key_exchanges = vec![rustls::NamedGroup::secp384r1]);
    server.trust(&authority);
    assert!(server.meet(None).await.is_ok(), "rustls' clients know it");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Arc::clone(&server.tls);
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        tls.accept(stream).await.map(drop).map_err(|error| error.to_string())
    });
    let (certificate, _) = self_signed::ensure(&server.dir.path().join("pki"), "edge1").unwrap();
    let mut provider = rustls::crypto::ring::default_provider();
    provider.kx_groups.retain(|group| group.name() == rustls::NamedGroup::X25519);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
    let config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let met = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("edge1").unwrap(), stream).await;
    assert!(met.is_err());
    let refused = serving.await.unwrap().unwrap_err();
    assert!(refused.contains("NoKxGroupsInCommon"), "{refused}");
}

#[tokio::test]
async fn anonymous_callers_are_users_where_they_are_let_in() {
    let server = Server::new(|settings| {
        (settings.client_ca, settings.anonymous) = (None, true);
        settings.mode = AuthorizationMode::AlwaysAllow;
    });
    assert_eq!(standing(&server.meet(None).await.unwrap()), (false, true));
}

#[tokio::test]
async fn files_that_are_replaced_count_for_the_next_client_and_missing_ones_are_named() {
    let (before, after) = (authority(), authority());
    let server = Server::new(|_| {});
    let error = server.meet(None).await.unwrap_err();
    assert!(error.contains("ca.crt: No such file"), "{error}");

    server.trust(&before);
    assert!(standing(&server.meet(Some(client(&before, "apiserver", ""))).await.unwrap()).0);
    let made = std::fs::read(server.dir.path().join("pki/kubelet.crt")).unwrap();

    server.trust(&after);
    assert!(!standing(&server.meet(Some(client(&before, "apiserver", ""))).await.unwrap()).0);
    assert!(standing(&server.meet(Some(client(&after, "apiserver", ""))).await.unwrap()).0);
    let kept = std::fs::read(server.dir.path().join("pki/kubelet.crt")).unwrap();
    assert!(made == kept, "the self-signed certificate stays");
}
