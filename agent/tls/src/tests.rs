//! Certificates of servers, trusted and not.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConnection, ServerConfig, ServerConnection, Stream};

use super::*;

fn days(count: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(20_000 + count).unwrap() * 86_400 + 3_600))
}

/// A certificate for `server` and 127.0.0.1, valid for ten days, and its key. It is an authority, like that of
/// `openssl req -x509`, unless `change` changes that.
fn made(change: impl FnOnce(&mut CertificateParams)) -> (CertificateDer<'static>, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["server".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // The days 20,000 and 20,010 since 1970.
    (params.not_before, params.not_after) = (date_time_ymd(2024, 10, 4), date_time_ymd(2024, 10, 14));
    change(&mut params);
    (params.self_signed(&key).unwrap().der().clone(), key)
}

fn outcome(named: &[&CertificateDer<'static>], shown: &CertificateDer<'_>, name: &str, day: i64) -> Result<(), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let named = named.iter().map(|der| (*der).clone()).collect();
    let verifier = verifier(named, System::Ignored, provider)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(shown, &[], &name, &[], days(day)).map(drop)
}

#[test]
fn a_certificate_that_is_named_is_accepted_for_its_names_and_its_time() {
    use CertificateError::{Expired, InvalidPurpose, NotValidYet};
    let (self_signed, _) = made(|_| ());
    let (other, _) = made(|_| ());
    let (leaf, _) = made(|params| params.is_ca = IsCa::ExplicitNoCa);
    let usage = |usage| move |params: &mut CertificateParams| params.extended_key_usages = vec![usage];
    let (of_server, _) = made(usage(ExtendedKeyUsagePurpose::ServerAuth));
    let (of_client, _) = made(usage(ExtendedKeyUsagePurpose::ClientAuth));
    for named in [&self_signed, &leaf, &of_server] {
        assert_eq!(outcome(&[&other, named], named, "server", 5), Ok(()));
        assert_eq!(outcome(&[named], named, "127.0.0.1", 5), Ok(()));
        assert_eq!(outcome(&[named], named, "server", -1), Err(NotValidYet.into()));
        assert_eq!(outcome(&[named], named, "server", 11), Err(Expired.into()));
        let elsewhere = outcome(&[named], named, "elsewhere", 5).unwrap_err().to_string();
        assert!(elsewhere.contains("not valid for name"), "{elsewhere}");
        assert!(outcome(&[&other], named, "server", 5).is_err(), "it is not named");
    }
    assert_eq!(outcome(&[&of_client], &of_client, "server", 5), Err(InvalidPurpose.into()));
}

#[test]
fn certificates_that_cannot_be_used_are_left_out_unless_all_are() {
    let (self_signed, _) = made(|_| ());
    let broken = CertificateDer::from(b"der".to_vec());
    assert_eq!(outcome(&[&broken, &self_signed], &self_signed, "server", 5), Ok(()));
    let error = outcome(&[&broken], &self_signed, "server", 5).unwrap_err().to_string();
    assert!(error.contains("no certificate of the authorities can be used"), "{error}");
}

#[test]
fn a_handshake_with_the_named_certificate_succeeds() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let trusted = params.self_signed(&key).unwrap().der().clone();
    let (other, _) = made(|_| ());
    for (named, expected) in [(trusted.clone(), true), (other, false)] {
        let config = client_config(vec![named], System::Ignored, None).unwrap();
        assert_eq!(handshake(&trusted, &key, config), expected);
    }
    // The system's authorities count as well.
    let config = client_config(vec![trusted.clone()], System::Trusted, None).unwrap();
    assert!(handshake(&trusted, &key, config));
}

/// The suites of TLS 1.2 that Go's client offers and rustls lacks, with OpenSSL as the server.
#[test]
fn a_server_of_an_old_device_is_understood_without_verification() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("skipped: there is no openssl");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for algorithm in [&["rsa:2048"][..], &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], &["rsa:1024"]] {
        let new_key =
            ["req", "-x509", "-nodes", "-subj", "/CN=device", "-keyout", "key.pem", "-out", "cert.pem", "-newkey"];
        let made = Command::new("openssl").args(new_key).args(algorithm).current_dir(&dir).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        for bits in [128, 256] {
            let kind = if algorithm[0] == "ec" { "ECDSA" } else { "RSA" };
            let suite = format!("ECDHE-{kind}-AES{bits}-SHA:@SECLEVEL=0");
            assert_eq!(exchanged(dir.path(), &suite), "old\n", "{suite} {algorithm:?}");
        }
    }
}

/// What an OpenSSL server with only this suite echoes in reverse, over several records.
fn exchanged(dir: &Path, suite: &str) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("openssl");
    server.args(["s_server", "-rev", "-tls1_2", "-cert", "cert.pem", "-key", "key.pem", "-naccept", "1"]);
    server.args(["-cipher", suite, "-accept", &format!("127.0.0.1:{port}")]).current_dir(dir);
    let mut server = server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // It prints ACCEPT once it listens.
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("ACCEPT")));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let config = unverified().unwrap();
    let mut connection = ClientConnection::new(config.into(), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    let mut tls = Stream::new(&mut connection, &mut stream);
    let mut answer = [0; 4];
    let outcome = tls.write_all(b"dlo\n").and_then(|()| tls.read_exact(&mut answer));
    drop(stream);
    server.kill().unwrap();
    server.wait().unwrap();
    outcome.map_or_else(|error| error.to_string(), |()| String::from_utf8_lossy(&answer).into_owned())
}

/// Whether a client accepts a server's answer over TLS.
fn handshake(certificate: &CertificateDer<'static>, key: &KeyPair, client: ClientConfig) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let server = server.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut connection = ServerConnection::new(server.into()).unwrap();
        // A client that does not trust it hangs up.
        let _ = Stream::new(&mut connection, &mut stream).write_all(b"hello");
    });
    let mut stream = TcpStream::connect(address).unwrap();
    let mut connection = ClientConnection::new(client.into(), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    let mut answer = [0; 5];
    let taken = Stream::new(&mut connection, &mut stream).read_exact(&mut answer).is_ok();
    drop(stream);
    serving.join().unwrap();
    taken
}
