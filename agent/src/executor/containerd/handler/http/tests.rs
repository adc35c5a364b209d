//! GETs against a scripted server on loopback, byte by byte.

use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ContainerPort, HTTPHeader};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use limpet_tests::claim::Port;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Answers each connection with the next of its answers, and records the requests.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answers: Vec<String>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&asked);
        tokio::spawn(async move {
            for answer in answers {
                let (stream, _) = listener.accept().await.unwrap();
                match &tls {
                    Some(tls) => serve(tls.accept(stream).await.unwrap(), &answer, &received).await,
                    None => serve(stream, &answer, &received).await,
                }
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str, received: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            // The first byte of a TLS record: no head follows.
            Ok(22) if head.is_empty() => break,
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    received.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
    // This fails if the reader has read enough and closed the connection.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    // Closing a connection with unread bytes resets it, and the answer would be lost.
    let mut rest = [0; 1 << 10];
    while let Ok(1..) = stream.read(&mut rest).await {}
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn redirect(status: u16, location: &str) -> String {
    format!("HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nmoved")
}

fn action(scheme: &str, port: u16, path: &str, headers: &[(&str, &str)]) -> HTTPGetAction {
    let header = |(name, value): &(&str, &str)| HTTPHeader { name: (*name).to_owned(), value: (*value).to_owned() };
    HTTPGetAction {
        host: None,
        http_headers: Some(headers.iter().map(header).collect()),
        path: Some(path.to_owned()),
        port: IntOrString::Int(port.into()),
        protocol: None,
        scheme: Some(scheme.to_owned()),
    }
}

fn get(action: &HTTPGetAction, purpose: Purpose) -> Get {
    let pod = Some(IpAddr::from([127, 0, 0, 1]));
    Get::new(action, &Container::default(), pod, purpose).unwrap()
}

async fn send(action: &HTTPGetAction) -> Result<Answer, GetFailure> {
    HttpGetter::default().send(get(action, Purpose::Probe), &AtomicBool::new(false)).await
}

#[tokio::test]
async fn a_request_says_what_kubelets_says() {
    let server = Server::start(vec![ok("fine"), ok("")], None).await;
    let answer = send(&action("HTTP", server.port, "/healthz?full=1", &[("X-Key", "a"), ("x-key", "b")])).await;
    assert_eq!(answer.unwrap(), Answer { status: StatusCode::OK, body: "fine".to_owned() });
    let headers = [("Host", "web.example"), ("User-Agent", "mine"), ("Accept", "")];
    let wanted = get(&action("HTTP", server.port, "ready", &headers), Purpose::Lifecycle);
    HttpGetter::default().send(wanted, &AtomicBool::new(false)).await.unwrap();
    let asked = server.asked();
    let lines = |index: usize| {
        let mut lines = asked[index].trim_end().lines().collect::<Vec<_>>();
        lines[1..].sort_unstable();
        lines
    };
    let host = format!("Host: 127.0.0.1:{}", server.port);
    let expected = [
        "GET /healthz?full=1 HTTP/1.1",
        "Accept: */*",
        "Connection: close",
        &host,
        "User-Agent: kube-probe/1.37",
        "X-Key: a",
        "X-Key: b",
    ];
    assert_eq!(lines(0), expected);
    assert_eq!(lines(1), ["GET /ready HTTP/1.1", "Connection: close", "Host: web.example", "User-Agent: mine"]);
}

#[test]
fn more_headers_than_a_request_can_have_are_a_failure() {
    let pod = Some(IpAddr::from([127, 0, 0, 1]));
    let new = |count: usize| {
        let header = |number| HTTPHeader { name: format!("X-{number}"), value: String::new() };
        let headers = Some((0..count).map(header).collect());
        let action = HTTPGetAction { http_headers: headers, ..action("HTTP", 80, "/", &[]) };
        Get::new(&action, &Container::default(), pod, Purpose::Probe)
    };
    new(MAX_HEADERS).unwrap();
    let error = new(40_000).err().unwrap().to_string();
    assert!(error.ends_with("40000 headers are too many: at most 4096 are sent"), "{error}");
}

#[test]
fn a_get_without_a_host_is_for_the_pod() {
    let mut wanted = action("HTTPS", 0, "", &[]);
    wanted.port = IntOrString::String("web".to_owned());
    let port = ContainerPort { name: Some("web".to_owned()), container_port: 443, ..ContainerPort::default() };
    let container = Container { ports: Some(vec![port]), ..Container::default() };
    let new = |wanted: &HTTPGetAction, pod: Option<&str>| {
        let pod = pod.map(|address| address.parse().unwrap());
        Get::new(wanted, &container, pod, Purpose::Lifecycle)
    };
    let made = new(&wanted, Some("fd00::1")).unwrap();
    assert_eq!((made.url.as_str(), made.authority().as_str()), ("https://[fd00::1]/", "[fd00::1]:443"));
    assert_eq!(made.without_tls().url.as_str(), "http://[fd00::1]:443/");
    assert_eq!(new(&wanted, None).unwrap_err().to_string(), "the pod has no address");
    wanted.host = Some("127.0.0.9".to_owned());
    wanted.path = Some("//a".to_owned());
    assert_eq!(new(&wanted, None).unwrap().url.as_str(), "https://127.0.0.9//a");
    wanted.port = IntOrString::String("none".to_owned());
    assert_eq!(new(&wanted, None).unwrap_err().to_string(), r#"the container has no port named "none""#);
}

#[tokio::test]
async fn redirects_are_followed_at_their_host_alone() {
    let server = Server::start(vec![redirect(302, "/next"), ok("there")], None).await;
    let answer = send(&action("HTTP", server.port, "/", &[("Host", "web.example")])).await.unwrap();
    assert_eq!(answer.body, "there");
    let asked = server.asked();
    assert!(asked[1].starts_with("GET /next ") && asked[1].contains("Host: web.example\r\n"), "{asked:?}");

    let server = Server::start(vec![redirect(301, "http://127.0.0.2/")], None).await;
    let answer = send(&action("HTTP", server.port, "/", &[])).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (301, "moved"));

    let server = Server::start(vec![redirect(307, "/again"); 11], None).await;
    let error = send(&action("HTTP", server.port, "/", &[])).await.unwrap_err();
    assert!(error.to_string().ends_with("stopped after 10 redirects"), "{error}");
}

#[tokio::test]
async fn a_body_is_read_up_to_its_bound() {
    let server = Server::start(vec![ok(&"x".repeat(1 << 20))], None).await;
    assert_eq!(send(&action("HTTP", server.port, "/", &[])).await.unwrap().body.len(), MAX_OUTPUT);
    // A body without a length ends with the connection.
    let server = Server::start(vec!["HTTP/1.0 503 Busy\r\n\r\nlater".to_owned()], None).await;
    let answer = send(&action("HTTP", server.port, "/", &[])).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (503, "later"));
}

#[tokio::test]
async fn an_answer_may_have_many_headers_and_odd_ones() {
    let many: String = (0..MAX_HEADERS - 1).map(|number| format!("X-{number}: {number}\r\n")).collect();
    let odd = [
        "X-Control: a\u{1}b",
        "X-Space : a",
        "X-Folded: a\r\n b",
        "X-Empty:",
        "X-Byte: \u{e4}",
        "X-Bare: a\nX-Next: b",
    ];
    for headers in [many].into_iter().chain(odd.map(|line| format!("{line}\r\n"))) {
        let answer = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 4\r\n\r\nfine");
        let server = Server::start(vec![answer], None).await;
        let answered = send(&action("HTTP", server.port, "/", &[])).await;
        assert_eq!(answered.unwrap().body, "fine", "{}", headers.lines().next().unwrap());
    }
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
    let server = Server::start(vec![endless], None).await;
    send(&action("HTTP", server.port, "/", &[])).await.unwrap_err();
}

#[tokio::test]
async fn what_is_no_answer_is_a_failure() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort";
    for broken in ["", "HTTP/1.1 200 OK\r\nContent-Le", "SSH-2.0-OpenSSH\r\n", cut] {
        let server = Server::start(vec![broken.to_owned()], None).await;
        let error = send(&action("HTTP", server.port, "/x", &[])).await.unwrap_err();
        assert_eq!(error.url, format!("http://127.0.0.1:{}/x", server.port), "{broken:?}: {error}");
    }
    let silent = Port::claim().unwrap();
    let port = silent.number;
    let error = send(&action("HTTP", port, "/", &[])).await.unwrap_err();
    let expected = format!("Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: ");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

/// TLS of a server that supports `protocols`, which are named as in the handshake.
fn acceptor(protocols: &[&str]) -> TlsAcceptor {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn any_certificate_will_do() {
    let server = Server::start(vec![ok("secret")], Some(acceptor(&[]))).await;
    assert_eq!(send(&action("HTTPS", server.port, "/", &[])).await.unwrap().body, "secret");
}

/// Answers one connection, only over HTTP/2, and returns the request.
async fn answer_http2(listener: TcpListener, answer: Response<&'static str>) -> Request<()> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(acceptor(&["h2"]).accept(stream).await.unwrap()).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let (head, body) = answer.into_parts();
    let mut sent = respond.send_response(Response::from_parts(head, ()), false).unwrap();
    sent.send_data(Bytes::from_static(body.as_bytes()), true).unwrap();
    // The loop ends when the other end has closed the connection.
    while let Some(Ok(_)) = connection.accept().await {}
    request.map(drop)
}

#[tokio::test]
async fn a_probe_speaks_http2_where_the_server_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(answer_http2(listener, Response::new("fine")));
    let headers = [("Host", "web.example"), ("X-Key", "a"), ("Upgrade", "mine")];
    let answer = send(&action("HTTPS", port, "/healthz?full=1", &headers)).await.unwrap();
    assert_eq!(answer, Answer { status: StatusCode::OK, body: "fine".to_owned() });
    let request = server.await.unwrap();
    assert_eq!(request.uri(), "https://web.example/healthz?full=1");
    let mut names = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let expected = [("x-key", "a"), ("user-agent", "kube-probe/1.37"), ("accept", "*/*")];
    assert!(names.all(|header| expected.contains(&header)) && request.headers().len() == 3, "{request:?}");
}

#[tokio::test]
async fn an_answer_over_http2_is_bounded_and_may_redirect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let long = Response::new("x".repeat(3 * MAX_OUTPUT).leak() as &str);
    let server = tokio::spawn(answer_http2(listener, long));
    assert_eq!(send(&action("HTTPS", port, "/", &[])).await.unwrap().body.len(), MAX_OUTPUT);
    server.await.unwrap();

    let plain = Server::start(vec![ok("there")], None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let there = format!("http://127.0.0.1:{}/next", plain.port);
    let server =
        tokio::spawn(answer_http2(listener, Response::builder().status(302).header(LOCATION, there).body("").unwrap()));
    assert_eq!(send(&action("HTTPS", port, "/", &[])).await.unwrap().body, "there");
    server.await.unwrap();
}

#[tokio::test]
async fn a_hook_speaks_http_1_with_every_server() {
    let server = Server::start(vec![ok("hooked")], Some(acceptor(&["h2", "http/1.1"]))).await;
    let wanted = get(&action("HTTPS", server.port, "/", &[]), Purpose::Lifecycle);
    let answer = HttpGetter::default().send(wanted, &AtomicBool::new(false)).await.unwrap();
    assert_eq!(answer.body, "hooked");
    // A probe also works with a server without HTTP/2.
    let server = Server::start(vec![ok("probed")], Some(acceptor(&["http/1.1"]))).await;
    assert_eq!(send(&action("HTTPS", server.port, "/", &[])).await.unwrap().body, "probed");
}

#[tokio::test]
async fn a_server_without_tls_is_recognized() {
    let server = Server::start(vec!["HTTP/1.1 400 Bad Request\r\n\r\n".to_owned(), ok("plain")], None).await;
    let wanted = get(&action("HTTPS", server.port, "/", &[("Authorization", "secret")]), Purpose::Lifecycle);
    let getter = HttpGetter::default();
    let error = getter.send(wanted.clone(), &AtomicBool::new(false)).await.unwrap_err();
    assert!(error.without_tls, "{error}");
    assert_eq!(getter.send(wanted.without_tls(), &AtomicBool::new(false)).await.unwrap().body, "plain");
    assert!(!server.asked()[1].contains("secret"));
}

#[tokio::test]
async fn a_server_that_shares_no_cipher_suite_is_named_as_such() {
    // This is a TLS alert: fatal, handshake_failure.
    let server = Server::start(vec!["\u{15}\u{3}\u{3}\u{0}\u{2}\u{2}\u{28}".to_owned()], None).await;
    let error = send(&action("HTTPS", server.port, "/", &[])).await.unwrap_err();
    assert!(error.cause.contains("no cipher suite with ECDHE") && !error.without_tls, "{error}");
}

#[tokio::test]
async fn an_answer_whose_body_breaks_off_differs_from_none() {
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort".to_owned();
    for (answer, expected) in [(short, true), (String::new(), false), ("HTTP/1.1 2".to_owned(), false)] {
        let server = Server::start(vec![answer.clone()], None).await;
        let (wanted, answered) = (get(&action("HTTP", server.port, "/", &[]), Purpose::Probe), AtomicBool::new(false));
        HttpGetter::default().send(wanted, &answered).await.unwrap_err();
        assert_eq!(answered.load(Ordering::Relaxed), expected, "{answer:?}");
    }
}
