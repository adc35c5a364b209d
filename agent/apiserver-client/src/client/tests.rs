//! Requests to scripted servers: what they contain, and which answers are accepted.

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::request::{Resource, Selector, WatchFrom};
use crate::watch::Change;

/// The headers of a request with the credentials that `change` makes of a kubeconfig whose user has this line.
async fn headers(user: &str, change: impl Fn(Credentials) -> Credentials) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: edge\n\
         contexts: [{{name: edge, context: {{cluster: lab, user: node}}}}]\n\
         clusters: [{{name: lab, cluster: {{server: 'http://{}'}}}}]\n\
         users: [{{name: node, user: {user}}}]\n",
        listener.local_addr().unwrap()
    );
    std::fs::write(&path, text).unwrap();
    let client = change(Credentials::read(&path, None).unwrap()).client().unwrap();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4_096];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        String::from_utf8_lossy(&request[..length]).to_lowercase()
    };
    let (answered, request) = tokio::join!(client.send(Request::get(Resource::Nodes)), answer);
    answered.unwrap();
    request
}

#[tokio::test]
async fn requests_are_in_the_name_of_whom_the_kubeconfig_or_the_node_says() {
    let output = headers("{token: t, as: ada, as-groups: [lab]}", |credentials| credentials).await;
    assert!(output.contains("impersonate-user: ada\r\n") && output.contains("impersonate-group: lab\r\n"), "{output}");
    let output = headers("{token: t}", |credentials| credentials.as_node("edge1")).await;
    assert!(output.contains("impersonate-user: system:node:edge1\r\n"), "{output}");
    assert!(output.contains("impersonate-group: system:nodes\r\n") && output.contains("bearer t"), "{output}");
    assert!(!headers("{token: t}", |credentials| credentials).await.contains("impersonate"));
}

/// A client of a server that sends `{"a":…}` byte by byte with this pause before each, `count` digits in all.
fn slow(pause: Duration, count: usize) -> Client {
    let bytes = format!("{{\"a\":1{}}}", "0".repeat(count)).into_bytes();
    Client::over(tower::service_fn(move |_: http::Request<Body>| {
        let bytes = bytes.clone();
        let frames = stream::unfold(bytes.into_iter(), move |mut bytes| async move {
            tokio::time::sleep(pause).await;
            let frame = Frame::data(Bytes::from(vec![bytes.next()?]));
            Some((Ok::<_, tower::BoxError>(frame), bytes))
        });
        async move { Ok::<_, tower::BoxError>(http::Response::new(StreamBody::new(Box::pin(frames)))) }
    }))
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_take_long_as_long_as_it_comes() {
    let (begun, client) = (Instant::now(), slow(DEADLINE / 2, 10));
    let received_count = client.received_count();
    let answer = client.send(Request::get(Resource::Nodes)).await.unwrap();
    assert_eq!(answer, json!({ "a": 10_000_000_000_u64 }));
    assert!(begun.elapsed() > DEADLINE * 5 && client.received_count() != received_count);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_or_never_ends_is_given_up() {
    let begun = Instant::now();
    let stopped = slow(DEADLINE * 2, 10).send(Request::get(Resource::Nodes)).await;
    assert!(matches!(stopped, Err(RequestError::Deadline(DEADLINE))), "{stopped:?}");
    assert!(begun.elapsed() < DEADLINE * 2);
    let endless = slow(DEADLINE / 2, 1_000).send(Request::get(Resource::Nodes)).await;
    assert!(matches!(endless, Err(RequestError::Deadline(ANSWER_TIMEOUT))), "{endless:?}");
}

#[tokio::test]
async fn a_refusal_keeps_what_the_server_says_in_whatever_words() {
    let refused = |body: &'static str| async move {
        let client = Client::over(tower::service_fn(move |_: http::Request<Body>| async move {
            let mut answer = http::Response::new(body.to_owned());
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            Ok::<_, tower::BoxError>(answer)
        }));
        client.send(Request::get(Resource::Nodes)).await.unwrap_err().to_string()
    };
    let status = r#"{"kind":"Status","status":"Failure","message":"no","reason":"Odd","code":502}"#;
    assert_eq!(refused(status).await, "no (502)");
    assert_eq!(refused("<html>\n").await, "<html> (502)");
}

#[tokio::test]
async fn a_token_is_sent_without_its_line_break_and_one_that_cannot_be_sent_is_a_credential_error() {
    let output = headers("{token: \"t\\n\"}", |credentials| credentials).await;
    assert!(output.contains("authorization: bearer t\r\n"), "{output}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let text = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
        clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: \"a\\nb\"}}]\n";
    std::fs::write(&path, text).unwrap();
    // The agent starts with this kubeconfig and reports the error.
    kubeconfig::check(&path).unwrap();
    let error = Client::open(&path, None).unwrap_err();
    assert!(matches!(&error, RequestError::Credentials(said) if said.starts_with("users[].user.token: ")), "{error}");
}

#[test]
fn a_request_is_below_the_path_of_its_server() {
    let at = |server: &'static str, request: &str| at(&Uri::from_static(server), &request.parse().unwrap());
    let table = [
        ("https://a:6443", "/api/v1/nodes?watch=true", "https://a:6443/api/v1/nodes?watch=true"),
        ("https://a/clusters/b/", "/api/v1/nodes", "https://a/clusters/b/api/v1/nodes"),
        ("https://a/clusters/b", "/", "https://a/clusters/b/"),
    ];
    for (server, request, expected) in table {
        assert_eq!(at(server, request).unwrap(), expected);
    }
    at("https://a/clusters/b", &format!("/{}", "x".repeat(65_530))).unwrap_err();
}

/// A client of a server whose answer never ends.
fn endless(status: u16) -> Client {
    Client::over(tower::service_fn(move |_: http::Request<Body>| async move {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let frames = stream::repeat_with(move || Ok::<_, tower::BoxError>(Frame::data(piece.clone())));
        http::Response::builder().status(status).body(StreamBody::new(Box::pin(frames)))
    }))
}

#[tokio::test]
async fn an_answer_and_a_line_of_a_watch_are_bounded() {
    let send =
        |status| async move { endless(status).send(Request::get(Resource::Nodes)).await.unwrap_err().to_string() };
    assert_eq!(send(200).await, "unexpected answer: more than 64 MiB");
    assert_eq!(send(500).await, "unexpected answer: more than 1 MiB");
    let watch = |status| async move {
        let from = WatchFrom::Version("1");
        endless(status).watch(Resource::AllPods, &Selector::default(), from, Duration::from_secs(60)).await
    };
    let refused = watch(500).await.unwrap_err().to_string();
    assert_eq!(refused, "unexpected answer: more than 1 MiB");
    let mut begun = watch(200).await.unwrap();
    let error = begun.next().await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "unexpected answer: a line of more than 16 MiB");
    assert!(begun.next().await.is_none());
}

#[tokio::test]
async fn the_changes_of_a_watch_come_line_by_line() {
    let body = concat!(
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}"#,
        "\n\n",
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"2"}}}"#,
        "\n",
        r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"old","reason":"Expired","code":410}}"#,
        "\n",
        r#"{"type":"DELE"#
    );
    let client = Client::over(tower::service_fn(move |_: http::Request<Body>| async move {
        Ok::<_, tower::BoxError>(http::Response::new(body.to_owned()))
    }));
    let from = WatchFrom::Version("0");
    let begun = client.watch(Resource::AllPods, &Selector::default(), from, Duration::from_secs(60)).await;
    let mut watch = begun.unwrap();
    let object = json!({ "metadata": { "resourceVersion": "1" } });
    assert_eq!(watch.next().await.unwrap().unwrap(), Change::Stored(object));
    assert_eq!(watch.next().await.unwrap().unwrap(), Change::Bookmark("2".to_owned()));
    assert!(watch.next().await.unwrap().unwrap_err().is_expired());
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_server_whose_own_certificate_is_the_authority_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let made = |name: &str, is_ca| {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = is_ca;
        params.self_signed(&key).unwrap()
    };
    let authority = || rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    for (certificate, accepted) in [
        (made("127.0.0.1", authority()), true),
        (made("127.0.0.1", rcgen::IsCa::ExplicitNoCa), true),
        (made("elsewhere", authority()), false),
    ] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let private_key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let tls = tls.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private_key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: '127.0.0.1:{port}', certificate-authority: ca.crt}}}}]\n",
        );
        std::fs::write(dir.path().join("ca.crt"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("kubeconfig"), text).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::open(&dir.path().join("kubeconfig"), None).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not accept the certificate hangs up.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let mut request = vec![0; 4_096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let (answered, ()) = tokio::join!(client.send(Request::get(Resource::Nodes)), serve);
        assert_eq!(answered.is_ok(), accepted, "{answered:?}");
    }
}
