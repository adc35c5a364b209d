//! Registries, mirrors and token servers that ask for more than they should get.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as AxumBody;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response as Answer};
use tokio::task::JoinHandle;

use super::*;

/// `limpet:s3cret`, as `Basic` sends it.
const LOGIN: &str = "Basic bGltcGV0OnMzY3JldA==";
const MANIFEST: &[u8] = br#"{"schemaVersion":2}"#;

/// A request that a server has received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    path: String,
    authorization: Option<String>,
    /// The header that `certs.d` sets for the registry.
    secret: Option<String>,
}

struct Server {
    address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(answer: impl Fn(&Seen) -> Answer + Clone + Send + Sync + 'static) -> Self {
        Self::serve(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    fn serve(
        listener: tokio::net::TcpListener,
        answer: impl Fn(&Seen) -> Answer + Clone + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let note = Arc::clone(&seen);
        let router = axum::Router::new().fallback(move |request: Request| {
            let header = |name: &str| Some(request.headers().get(name)?.to_str().ok()?.to_owned());
            let path = request.uri().path().to_owned();
            let request_seen = Seen { path, authorization: header(AUTHORIZATION.as_str()), secret: header("x-secret") };
            note.lock().unwrap().push(request_seen.clone());
            std::future::ready(answer(&request_seen))
        });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, task }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The credentials of all requests, in order.
    fn credentials(&self) -> Vec<String> {
        self.seen().into_iter().flat_map(|seen| [seen.authorization, seen.secret]).flatten().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn challenge(challenge: &str) -> Answer {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, challenge.to_owned())]).into_response()
}

fn redirect(status: u16, to: String) -> Answer {
    (StatusCode::from_u16(status).unwrap(), [(LOCATION, to)]).into_response()
}

/// A session for `registry.example/app` with this `hosts.toml` and the credentials in `auths`.
fn session(hosts: &str, auths: &[(&str, &str)]) -> (Session, tempfile::TempDir) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let certs_d = dir.path().join("registry.example");
    std::fs::create_dir(&certs_d).unwrap();
    std::fs::write(certs_d.join("hosts.toml"), hosts).unwrap();
    let entries = auths.iter().map(|(host, entry)| format!("{host:?}: {entry}"));
    let config: PathBuf = dir.path().join("config.json");
    let entries = entries.collect::<Vec<_>>().join(", ");
    std::fs::write(&config, format!("{{\"auths\": {{{entries}}}}}")).unwrap();
    let keyring = Keyring::new(&[], &[config], &[]);
    assert!(keyring.complaints.is_empty(), "{:?}", keyring.complaints);
    let name = ImageName::parse("registry.example/app:1").unwrap();
    (Session::prepare(name, dir.path(), &keyring, 0).unwrap(), dir)
}

const PASSWORD: &str = r#"{"auth": "bGltcGV0OnMzY3JldA=="}"#;
const TOKEN: &str = r#"{"identitytoken": "r3fresh"}"#;

/// A server that requires a password.
fn closed(seen: &Seen) -> Answer {
    match seen.authorization.as_deref() {
        Some(LOGIN) => MANIFEST.into_response(),
        _ => challenge("Basic realm=\"x\""),
    }
}

#[tokio::test]
async fn a_mirror_gets_its_own_credentials_and_none_of_the_registrys() {
    let mirror = Server::start(closed).await;
    let registry = Server::start(closed).await;
    let hosts = format!("server = \"http://{}\"\n[host.\"http://{}\"]\n", registry.address, mirror.address);
    let (session_of, _dir) = session(&hosts, &[("registry.example", PASSWORD)]);
    session_of.manifest("1").await.unwrap();
    assert_eq!((mirror.seen().len(), mirror.credentials()), (1, vec![]));
    assert_eq!(registry.credentials(), [LOGIN]);
    let (session_of, _dir) = session(&hosts, &[("registry.example", PASSWORD), (&mirror.address, PASSWORD)]);
    session_of.manifest("1").await.unwrap();
    assert_eq!((mirror.credentials().len(), registry.credentials().len()), (1, 1));
    // A table for the server's own address is not a mirror.
    let hosts = format!("server = \"http://{0}\"\n[host.\"http://{0}\"]\n", registry.address);
    let (session_of, _dir) = session(&hosts, &[("registry.example", PASSWORD)]);
    session_of.manifest("1").await.unwrap();
}

#[tokio::test]
async fn a_redirect_to_another_host_takes_no_credentials_along() {
    let elsewhere = Server::start(|seen| match seen.path.as_str() {
        "/manifest" => MANIFEST.into_response(),
        _ => challenge("Basic realm=\"x\""),
    })
    .await;
    for (status, to, succeeds) in [(302, "manifest", true), (307, "manifest", true), (308, "closed", false)] {
        let target = format!("http://{}/{to}", elsewhere.address);
        let registry = Server::start(move |seen| match seen.authorization.as_deref() {
            Some(LOGIN) => redirect(status, target.clone()),
            _ => challenge("Basic realm=\"x\""),
        })
        .await;
        let hosts = format!("server = \"http://{}\"\n[header]\nx-secret = \"s3cret\"\n", registry.address);
        let (session, _dir) = session(&hosts, &[(&registry.address, PASSWORD)]);
        let fetched = session.manifest("1").await;
        assert_eq!(fetched.is_ok(), succeeds, "{status}: {:?}", fetched.err());
        assert_eq!(registry.credentials(), ["s3cret", LOGIN, "s3cret"], "{status}");
    }
    assert_eq!((elsewhere.seen().len(), elsewhere.credentials()), (3, vec![]));
}

#[tokio::test]
async fn a_redirect_at_the_same_host_is_signed_too() {
    let registry = Server::start(|seen| match seen.path.as_str() {
        "/v2/app/manifests/1" => redirect(302, "/v2/app/manifests/2".to_owned()),
        _ => closed(seen),
    })
    .await;
    let hosts = format!("server = \"http://{}\"\n", registry.address);
    let (session, _dir) = session(&hosts, &[(&registry.address, PASSWORD)]);
    session.manifest("1").await.unwrap();
}

#[tokio::test]
async fn an_endless_chain_of_redirects_is_given_up() {
    let registry = Server::start(|seen| redirect(307, format!("{}x", seen.path))).await;
    let (session, _dir) = session(&format!("server = \"http://{}\"\n", registry.address), &[]);
    let error = session.manifest("1").await.unwrap_err().to_string();
    assert!(error.contains("more than 5 redirects"), "{error}");
    assert_eq!(registry.seen().len(), 6);
}

#[tokio::test]
async fn a_token_server_that_redirects_gets_no_refresh_token_passed_on() {
    let elsewhere = Server::start(|_| r#"{"token": "t0ken"}"#.into_response()).await;
    for status in [301, 302, 307, 308] {
        let target = format!("http://{}/token", elsewhere.address);
        let auth = Server::start(move |_| redirect(status, target.clone())).await;
        let realm = auth.address.clone();
        let registry = Server::start(move |_| challenge(&format!("Bearer realm=\"http://{realm}/token\""))).await;
        let hosts = format!("server = \"http://{}\"\n", registry.address);
        for credentials in [TOKEN, PASSWORD] {
            let (session, _dir) = session(&hosts, &[(&registry.address, credentials)]);
            let error = session.manifest("1").await.unwrap_err().to_string();
            assert!(error.contains("is not followed"), "{status}: {error}");
        }
        assert_eq!(auth.seen().len(), 2, "{status}");
    }
    assert_eq!(elsewhere.seen(), []);
}

#[tokio::test]
async fn a_plain_registry_names_no_plain_realm_on_another_host() {
    let auth = Server::start(|_| r#"{"token": "t0ken"}"#.into_response()).await;
    let realm = auth.address.replace("127.0.0.1", "localhost");
    let registry = Server::start(move |_| challenge(&format!("Bearer realm=\"http://{realm}/token\""))).await;
    let hosts = format!("server = \"http://{}\"\n", registry.address);
    let (session, _dir) = session(&hosts, &[(&registry.address, PASSWORD)]);
    let error = session.manifest("1").await.unwrap_err().to_string();
    assert!(error.contains("by a realm without TLS"), "{error}");
    assert_eq!(auth.seen(), []);
}

/// A body that sends a byte every thirty seconds.
fn dripping() -> Answer {
    let drip = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        Some((Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"x")), ()))
    });
    AxumBody::from_stream(drip).into_response()
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_drips_is_given_up_with_its_rate() {
    let registry = Server::start(|_| dripping()).await;
    let (session, _dir) = session(&format!("server = \"http://{}\"\n", registry.address), &[]);
    let mut download = session.blob("sha256:00", 0).await.unwrap();
    let error = loop {
        match download.chunk().await {
            Ok(chunk) => assert!(chunk.is_some()),
            Err(error) => break error,
        }
    };
    let host = format!("http://{} is too slow: ", registry.address);
    assert!(error.starts_with(&host) && error.contains("; the minimum is "), "{error}");
    let error = session.manifest("1").await.unwrap_err().to_string();
    assert!(error.contains(&host), "{error}");
}

/// A storage host that requires its own token, from its own realm.
async fn storage() -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let realm = listener.local_addr().unwrap().to_string();
    listener.set_nonblocking(true).unwrap();
    let asked = format!("Bearer realm=\"http://{realm}/token\",service=\"storage\"");
    Server::serve(tokio::net::TcpListener::from_std(listener).unwrap(), move |seen| match &*seen.path {
        "/token" => r#"{"token": "anonymous"}"#.into_response(),
        _ if seen.authorization.as_deref() == Some("Bearer anonymous") => MANIFEST.into_response(),
        _ => challenge(&asked),
    })
}

#[tokio::test]
async fn a_host_behind_a_redirect_gets_an_anonymous_token_of_its_own() {
    let storage = storage().await;
    let target = format!("http://{}/blob", storage.address);
    let registry = Server::start(move |seen| match seen.authorization.as_deref() {
        Some(LOGIN) => redirect(307, target.clone()),
        _ => challenge("Basic realm=\"x\""),
    })
    .await;
    let hosts = format!("server = \"http://{}\"\n[header]\nx-secret = \"s3cret\"\n", registry.address);
    let (session, _dir) = session(&hosts, &[(&registry.address, PASSWORD), (&storage.address, TOKEN)]);
    session.manifest("1").await.unwrap();
    // No credential of the registry is sent elsewhere, and none from elsewhere is sent to it.
    assert_eq!(storage.credentials(), ["Bearer anonymous"]);
    assert!(registry.credentials().iter().all(|sent| sent == "s3cret" || sent == LOGIN));
    let paths: Vec<String> = storage.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/blob", "/token", "/blob"]);
    // The token is kept for the rest of the pull.
    session.blob("sha256:00", 0).await.unwrap();
    assert_eq!(storage.seen().len(), 4);
}

#[tokio::test]
async fn a_host_behind_a_redirect_that_refuses_its_token_is_asked_once() {
    let elsewhere = Server::start(|seen| match &*seen.path {
        "/token" => r#"{"token": "t0ken"}"#.into_response(),
        _ => challenge("Basic realm=\"x\""),
    })
    .await;
    let target = format!("http://{}/blob", elsewhere.address);
    let registry = Server::start(move |_| redirect(307, target.clone())).await;
    let (session, _dir) = session(&format!("server = \"http://{}\"\n", registry.address), &[]);
    let error = session.manifest("1").await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains(&format!("redirected to http://{}", elsewhere.address)), "{error}");
    assert_eq!(elsewhere.seen().len(), 1);
}

/// Answers this many requests with a status and `Retry-After`, then with the content.
async fn busy(times: usize, status: u16, retry_after: Option<&'static str>) -> Server {
    let left = Arc::new(Mutex::new(times));
    Server::start(move |_| {
        let mut left = left.lock().unwrap();
        if *left == 0 {
            return MANIFEST.into_response();
        }
        *left -= 1;
        let mut answer = StatusCode::from_u16(status).unwrap().into_response();
        if let Some(value) = retry_after {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(value));
        }
        answer
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_busy_registry_is_asked_again_after_the_time_that_it_wants() {
    let table = [
        (429, Some("7"), 2, Some(Duration::from_secs(14))),
        (503, Some("1"), 4, Some(Duration::from_secs(4))),
        (503, None, 2, Some(Duration::from_millis(1500))),
        (502, None, 1, Some(Duration::from_millis(500))),
        (504, Some("no time"), 1, Some(Duration::from_millis(500))),
        // The registry is busy too often or too long, or fails permanently.
        (503, Some("1"), 5, None),
        (429, Some("3600"), 1, None),
        (500, None, 1, None),
    ];
    for (status, retry_after, times, waited) in table {
        let registry = busy(times, status, retry_after).await;
        let (session, _dir) = session(&format!("server = \"http://{}\"\n", registry.address), &[]);
        let began = tokio::time::Instant::now();
        let answer = session.manifest("1").await;
        assert_eq!(answer.is_ok(), waited.is_some(), "{status} {retry_after:?} {times}: {answer:?}");
        if let Some(waited) = waited {
            // The virtual clock advances only in pauses, rounded up to milliseconds.
            let error = began.elapsed().saturating_sub(waited);
            assert!(began.elapsed() >= waited && error < Duration::from_millis(20), "{status} {:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_mirror_does_not_hold_up_the_registry() {
    let (mirror, registry) = (busy(9, 503, Some("10")).await, Server::start(|_| MANIFEST.into_response()).await);
    let hosts = format!("server = \"http://{}\"\n[host.\"http://{}\"]\n", registry.address, mirror.address);
    session(&hosts, &[]).0.manifest("1").await.unwrap();
    assert_eq!((mirror.seen().len(), registry.seen().len()), (1, 1));
}

#[test]
fn a_registrys_own_answer_is_final_whatever_its_mirrors_say() {
    let failure = |kind| Failure::new(kind, "");
    let busy = || failure(Kind::Busy(Some(Duration::from_secs(3))));
    let table = [
        (vec![(0, busy())], 0, Some(3)),
        (vec![(0, busy())], MAX_ROUNDS, None),
        (vec![(0, busy()), (1, failure(Kind::Unreachable))], 0, Some(3)),
        (vec![(1, failure(Kind::NotFound)), (0, busy())], 0, None),
        (vec![(0, failure(Kind::NotFound)), (1, busy())], 0, Some(3)),
        (vec![(0, failure(Kind::Unreachable))], 0, None),
        (vec![], 0, None),
    ];
    for (failures, rounds, seconds) in table {
        assert_eq!(pause(&failures, rounds), seconds.map(Duration::from_secs), "{failures:?}");
    }
}

#[tokio::test]
async fn a_url_with_settings_for_tls_falls_back_to_the_http_that_it_names() {
    let registry = Server::start(closed).await;
    let hosts = format!("server = \"http://{}\"\nskip_verify = true\n", registry.address);
    let (session_of, _dir) = session(&hosts, &[(&registry.address, PASSWORD)]);
    session_of.manifest("1").await.unwrap();
    session_of.blob("sha256:00", 0).await.unwrap();
    assert_eq!(registry.credentials(), [LOGIN, LOGIN]);
    drop(registry);
    let (session, _dir) = session(&hosts, &[]);
    let error = session.manifest("1").await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
}
