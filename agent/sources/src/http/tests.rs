#![allow(clippy::unwrap_used, clippy::expect_used)]

mod certificates;
mod server;

use limpet_model::manifest;
use limpet_tests::claim::Port;
use limpet_tests::wait;
use std::io::Write;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::first_snapshot::first_snapshot;
use limpet_model::pod::PodRecord;
use server::{RecordedRequest, Reply, Server};

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);
/// Enough for a machine that is busy with other tests.
fn timeouts() -> Timeouts {
    Timeouts { connect: wait::soon(), silence: wait::soon(), whole: wait::soon() }
}

/// For responses that never come.
fn short_timeouts() -> Timeouts {
    Timeouts { silence: Duration::from_millis(400), whole: Duration::from_millis(800), ..timeouts() }
}

/// A list of pods by name and image.
fn list(pods: &[(&str, &str)]) -> String {
    let item = |(name, image): &(&str, &str)| {
        format!(
            "- apiVersion: v1\n  kind: Pod\n  metadata: {{name: {name}}}\n  spec: {{containers: [{{name: a, image: '{image}'}}]}}\n"
        )
    };
    format!("apiVersion: v1\nkind: PodList\nitems:\n{}", pods.iter().map(item).collect::<String>())
}

fn settings(url: &str) -> HttpSettings {
    HttpSettings {
        address: Address::parse(url).unwrap(),
        headers: reqwest::header::HeaderMap::new(),
        frequency: Duration::from_millis(10),
        ca_file: None,
        client_files: None,
    }
}

/// The published snapshots, the pulse, the stop token and the task.
type Running = (watch::Receiver<Arc<SourceSnapshot>>, Arc<Pulse>, CancellationToken, JoinHandle<()>);

/// A running source and its store.
struct Bench {
    root: tempfile::TempDir,
    store: Arc<Store>,
    running: Option<Running>,
    timeouts: Timeouts,
    /// How often it has failed already.
    failures: u32,
    network: watch::Sender<NodeNetwork>,
    /// Every snapshot of the latest run.
    seen: Arc<std::sync::Mutex<Vec<Arc<SourceSnapshot>>>>,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let network = watch::Sender::default();
        Self { root, store, running: None, timeouts: timeouts(), failures: 0, network, seen: Arc::default() }
    }

    fn start(&mut self, settings: HttpSettings) {
        let (sender, receiver) = watch::channel(Arc::new(SourceSnapshot::default()));
        let stop = CancellationToken::new();
        let source = HttpSource::with_timeouts(settings, "edge1", Arc::clone(&self.store), DECODER, self.timeouts);
        let mut source = source.woken_by(self.network.subscribe());
        source.failures = self.failures;
        let pulse = source.pulse();
        let seen = Arc::default();
        self.seen = Arc::clone(&seen);
        let publish = move |snapshot: Arc<SourceSnapshot>| {
            seen.lock().unwrap().push(Arc::clone(&snapshot));
            sender.send_replace(snapshot);
        };
        self.running = Some((receiver, pulse, stop.clone(), tokio::spawn(source.run(publish, stop))));
    }

    async fn stop(&mut self) {
        let (_, _, stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    fn pulse(&self) -> &Pulse {
        &self.running.as_ref().unwrap().1
    }

    /// The first snapshot as [`first_snapshot`] waits for it.
    async fn until(&mut self, wanted: impl Fn(&SourceSnapshot) -> bool) -> Arc<SourceSnapshot> {
        let (receiver, ..) = self.running.as_mut().unwrap();
        first_snapshot(receiver, wanted).await
    }

    async fn until_good(&mut self, pods: &[&str]) -> Arc<SourceSnapshot> {
        self.until(|now| now.health == Health::Good && now.ready && shape(now) == pods).await
    }

    /// The reason of the first snapshot whose source is unavailable.
    async fn until_unavailable(&mut self) -> (String, Arc<SourceSnapshot>) {
        let snapshot = self.until(|now| matches!(now.health, Health::Unavailable(_))).await;
        let Health::Unavailable(reason) = &snapshot.health else { unreachable!() };
        (reason.to_string(), snapshot)
    }
}

/// `name image` of every pod.
fn shape(snapshot: &SourceSnapshot) -> Vec<String> {
    let image = |pod: &PodRecord| pod.spec().containers[0].image.clone().unwrap();
    snapshot.pods.values().map(|pod| format!("{} {}", pod.key.name(), image(pod))).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Responds well once and then always with `then`.
fn once(good: String, then: Reply) -> impl FnMut(&RecordedRequest) -> Reply + Send {
    let mut first = Some(Reply::ok(good));
    move |_| first.take().unwrap_or_else(|| then.clone())
}

#[tokio::test]
async fn pods_are_added_changed_and_removed_with_the_response() {
    let server = Server::start(|_| Reply::ok(list(&[("a", "x:1"), ("b", "x:1")]))).await;
    let mut bench = Bench::new();
    bench.start(settings(&server.url("/pods")));
    let before = bench.until_good(&["a-edge1 x:1", "b-edge1 x:1"]).await;
    let origin = server.url("/pods");
    assert!(before.pods.values().all(|pod| *pod.origin == *origin && pod.source == SourceKind::Http));
    server.script(|_| {
        Reply::new("200 OK", "Content-Encoding: gzip\r\n", gzip(list(&[("a", "x:1"), ("b", "x:2")]).as_bytes()))
    });
    let after = bench.until_good(&["a-edge1 x:1", "b-edge1 x:2"]).await;
    assert!(Arc::ptr_eq(before.pods.values().next().unwrap(), after.pods.values().next().unwrap()));
    server.script(|_| Reply::ok("{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}"));
    bench.until_good(&[]).await;
    bench.stop().await;
    let saved = bench.store.load::<LastGood>(SourceKind::Http).unwrap().records;
    assert!(saved[&Arc::from(origin)].manifests.is_empty());
}

/// After any bad response, the pods stay, and the reason is reported.
#[tokio::test]
async fn no_bad_response_removes_a_pod() {
    let large = vec![b'#'; 11 << 20];
    let bomb = gzip(&large);
    let good = list(&[("a", "x:1")]);
    let chunked = |body: &[u8]| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".to_vec();
        Reply::Bytes([head, format!("{:x}\r\n", body.len()).into_bytes(), body.to_vec(), b"\r\n".to_vec()].concat())
    };
    let table = [
        (Reply::new("404 Not Found", "", "no"), "answered 404"),
        (Reply::new("500 Internal Server Error", "", ""), "answered 500"),
        (Reply::new("503 Service Unavailable", "Retry-After: 120\r\n", ""), "answered 503"),
        (Reply::new("304 Not Modified", "", ""), "answered 304"),
        (Reply::new("204 No Content", "", ""), "answered 204"),
        (Reply::new("206 Partial Content", "", &good), "answered 206"),
        (Reply::ok(""), "empty response"),
        (Reply::ok("\n# nothing\n---\n"), "empty response"),
        (Reply::ok("null\n"), "holds nothing"),
        (Reply::ok("<html>log in</html>"), "web page"),
        (Reply::ok(&large), "larger than 10 MiB"),
        (chunked(&large), "larger than 10 MiB"),
        (Reply::new("200 OK", "Content-Encoding: gzip\r\n", &bomb), "larger than 10 MiB, decompressed"),
        (Reply::new("200 OK", "Content-Encoding: gzip\r\n", &bomb[..bomb.len() / 2]), "cannot decompress"),
        (Reply::new("200 OK", "Content-Encoding: gzip\r\n", &good), "cannot decompress"),
        (Reply::new("200 OK", "Content-Encoding: br\r\n", "x"), "compressed as br"),
        (chunked(good.as_bytes()), ""),
        (Reply::Bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{good}").into_bytes()), ""),
        (Reply::Bytes(format!("HTTP/1.1 200 OK\r\n\r\n{good}").into_bytes()), "without Content-Length"),
        (Reply::Bytes(b"SSH-2.0-dropbear\r\n".to_vec()), ""),
        (Reply::Bytes(Vec::new()), ""),
        (Reply::Silence(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n".to_vec()), "no data received"),
        (Reply::Silence(Vec::new()), "timeout"),
        (Reply::Drip(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), "timeout: no complete response"),
        (Reply::new("302 Found", "Location: /pods\r\n", ""), "redirects"),
        (Reply::new("302 Found", "Location: ftp://x/y?token=1\r\n", ""), "to ftp://x/y?…, which is not followed"),
        (Reply::new("302 Found", "", ""), "without a Location"),
        (Reply::new("300 Multiple Choices", "Location: /x\r\n", ""), "answered 300"),
    ];
    for (number, (reply, expected)) in table.into_iter().enumerate() {
        let never_whole = matches!(reply, Reply::Silence(_) | Reply::Drip(_));
        let server = Server::start(once(list(&[("a", "x:1")]), reply)).await;
        let mut bench = Bench::new();
        bench.timeouts = if never_whole { short_timeouts() } else { timeouts() };
        bench.start(settings(&server.url("/pods")));
        let before = bench.until_good(&["a-edge1 x:1"]).await;
        let (reason, after) = bench.until_unavailable().await;
        assert!(reason.contains(expected) && reason.ends_with("; 1 pods are kept"), "{number}: {reason}");
        assert!(after.ready && before.pods.ptr_eq(&after.pods), "{number}: {after:?}");
        let retry = bench.pulse().next_retry().expect("a retry");
        let asked = retry.duration_since(Timestamp::now()).as_secs() >= 110;
        assert_eq!(asked, expected == "answered 503", "{number}: {retry}");
        bench.stop().await;
        assert_eq!(
            bench.store.load::<LastGood>(SourceKind::Http).unwrap().records.values().next().unwrap().manifests.len(),
            1
        );
    }
}

#[tokio::test]
async fn a_known_response_is_not_sent_again() {
    let server = Server::start(|asked| match asked.header("if-none-match") {
        Some("\"7\"") => Reply::Bytes(b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n".to_vec()),
        _ => Reply::new(
            "200 OK",
            "ETag: \"7\"\r\nLast-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n",
            list(&[("a", "x:1")]),
        ),
    })
    .await;
    let mut bench = Bench::new();
    bench.start(settings(&server.url("/pods")));
    bench.until_good(&["a-edge1 x:1"]).await;
    wait_for(|| server.requests().len() >= 3).await;
    bench.stop().await;
    let asked = server.requests();
    assert!(asked[0].header("if-none-match").is_none());
    assert!(asked[1..].iter().all(|asked| asked.header("if-none-match") == Some("\"7\"")
        && asked.header("if-modified-since") == Some("Sat, 21 Nov 2026 10:00:00 GMT")));
    assert_eq!(bench.seen.lock().unwrap().len(), 1, "one response, one snapshot");

    // Nor after a restart.
    bench.start(settings(&server.url("/pods")));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    assert_eq!(server.requests()[asked.len()].header("if-none-match"), Some("\"7\""));
    // The validators belong to one URL.
    bench.start(settings(&server.url("/other")));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    let other: Vec<RecordedRequest> =
        server.requests().into_iter().filter(|asked| asked.head.starts_with("GET /other")).collect();
    assert!(other[0].header("if-none-match").is_none());
}

/// Waits until `met` is true; the server's side has no snapshot to wait for.
async fn wait_for(met: impl Fn() -> bool) {
    let wait = async {
        while !met() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait::soon(), wait).await.expect("not met");
}

#[tokio::test]
async fn last_good_pods_are_published_before_the_network_is_up() {
    let port = Port::claim().unwrap();
    let server = Server::start_at(port.number, None, |_| Reply::ok(list(&[("a", "x:1")]))).await;
    let (mut bench, url) = (Bench::new(), server.url("/pods?node=edge1"));
    bench.start(settings(&url));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    drop(server);

    bench.start(settings(&url));
    let (reason, _) = bench.until_unavailable().await;
    assert!(reason.contains("refused") && reason.ends_with("; 1 pods are kept"), "{reason}");
    let seen = bench.seen.lock().unwrap().clone();
    assert_eq!(
        (shape(&seen[0]), seen[0].ready, &seen[0].health),
        (vec!["a-edge1 x:1".to_owned()], false, &Health::Starting)
    );
    assert!(bench.pulse().last_success().is_some(), "the age of the last good manifests");
    let _server = Server::start_at(port.number, None, |_| Reply::ok(list(&[("b", "x:1")]))).await;
    bench.until_good(&["b-edge1 x:1"]).await;
    bench.stop().await;

    // Another URL with an unresolvable name: the pods of the previous URL stay until it responds.
    bench.start(settings("http://nowhere.invalid/pods"));
    let (reason, snapshot) = bench.until_unavailable().await;
    assert_eq!(shape(&snapshot), ["b-edge1 x:1"], "{reason}");
    bench.stop().await;
    let server = Server::start(|_| Reply::ok(list(&[("c", "x:1")]))).await;
    bench.start(settings(&server.url("/new")));
    bench.until_good(&["c-edge1 x:1"]).await;
    bench.stop().await;
    assert_eq!(bench.store.load::<LastGood>(SourceKind::Http).unwrap().records.len(), 1);
}

#[tokio::test]
async fn a_damaged_database_is_refilled() {
    let server = Server::start(|_| Reply::ok(list(&[("a", "x:1")]))).await;
    let mut bench = Bench::new();
    bench.start(settings(&server.url("/pods")));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    let path = bench.root.path().join("limpet.db");
    bench.store.forget_database();
    std::fs::write(&path, "not a database").unwrap();
    // Nothing is known of the pods at the start; the response fills the new database.
    bench.start(settings(&server.url("/pods")));
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    assert_eq!(bench.store.load::<LastGood>(SourceKind::Http).unwrap().records.len(), 1);
    assert_eq!(bench.store.damaged().len(), 1);
}

#[tokio::test]
async fn one_invalid_item_does_not_reject_the_others() {
    let server = Server::start(|_| Reply::new("200 OK", "ETag: \"1\"\r\n", list(&[("a", "x:1"), ("b", "x:1")]))).await;
    let mut bench = Bench::new();
    bench.start(settings(&server.url("/pods")));
    bench.until_good(&["a-edge1 x:1", "b-edge1 x:1"]).await;
    let broken = list(&[("a", "x:2"), ("b", "x:2")]).replace(
        "metadata: {name: b}\n  spec: {containers: [{name: a,",
        "metadata: {name: b}\n  spec: {containers: [{name: A_A,",
    );
    let answer = broken.clone();
    server.script(move |_| Reply::new("200 OK", "ETag: \"2\"\r\n", &answer));
    let snapshot = bench.until_good(&["a-edge1 x:2", "b-edge1 x:1"]).await;
    let rejection = snapshot.rejected.values().next().expect("a rejection");
    assert_eq!(*rejection.origin, *server.url("/pods"));
    assert!(rejection.faults[0].path.starts_with("items[1].spec.containers[0].name"), "{rejection:?}");
    assert_eq!(rejection.kept[0].name(), "b-edge1");
    bench.stop().await;

    // After a restart the faults are known again: the response is not requested conditionally.
    let first = server.requests().len();
    bench.start(settings(&server.url("/pods")));
    bench.until(|now| now.ready && !now.rejected.is_empty() && shape(now) == ["a-edge1 x:2", "b-edge1 x:1"]).await;
    assert!(server.requests()[first].header("if-none-match").is_none());
    server.script(|_| Reply::ok(list(&[("a", "x:3")])));
    let snapshot = bench.until_good(&["a-edge1 x:3"]).await;
    assert!(snapshot.rejected.is_empty());

    // Text that is not YAML at all: everything stays.
    server.script(|_| Reply::ok("a: b: c: {"));
    let snapshot = bench.until(|now| !now.rejected.is_empty()).await;
    assert_eq!(shape(&snapshot), ["a-edge1 x:3"]);
    bench.stop().await;
}

/// A pod that is certainly not in a response is removed, whatever else is wrong with the response.
#[tokio::test]
async fn an_invalid_item_keeps_only_the_pods_it_may_be() {
    let good = list(&[("a", "x:1"), ("b", "x:1"), ("c", "x:1")]);
    let table = [
        // It has a name: c is not in the response.
        ("metadata: {name: b}\n  spec: {containers: []}", vec!["a-edge1 x:2", "b-edge1 x:1"]),
        // It may be any pod.
        ("metadata: {}\n  spec: {containers: []}", vec!["a-edge1 x:2", "b-edge1 x:1", "c-edge1 x:1"]),
        ("metadata: {name: b, namespace: 5}\n  spec: {}", vec!["a-edge1 x:2", "b-edge1 x:1", "c-edge1 x:1"]),
    ];
    let mut answers: Vec<(String, Vec<&str>)> = table
        .into_iter()
        .map(|(item, expected)| {
            let item = format!("- apiVersion: v1\n  kind: Pod\n  {item}\n");
            (format!("{}{item}", list(&[("a", "x:2")])), expected)
        })
        .collect();
    // It is not a pod.
    let object = "- apiVersion: v1\n  kind: ConfigMap\n  metadata: {}\n  data: {a: 5}\n";
    answers.push((format!("{}{object}", list(&[("a", "x:2")])), vec!["a-edge1 x:2"]));
    for (answer, expected) in answers {
        let first = good.clone();
        let server = Server::start(move |_| Reply::ok(&first)).await;
        let mut bench = Bench::new();
        bench.start(settings(&server.url("/pods")));
        bench.until_good(&["a-edge1 x:1", "b-edge1 x:1", "c-edge1 x:1"]).await;
        let bad = answer.clone();
        server.script(move |_| Reply::ok(&bad));
        let snapshot = bench.until(|now| !now.rejected.is_empty()).await;
        assert_eq!(shape(&snapshot), expected, "{answer}");
        bench.stop().await;
    }
}

#[tokio::test]
async fn secrets_are_sent_to_their_own_origin_only() {
    let other = Server::start(|_| Reply::ok(list(&[("a", "x:1")]))).await;
    let elsewhere = other.url("/pods");
    let server = Server::start(move |asked| match asked.head.split(' ').nth(1) {
        Some("/start") => Reply::new("302 Found", "Location: /next?x=1\r\n", ""),
        _ => Reply::new("307 Temporary Redirect", &format!("Location: {elsewhere}\r\n"), ""),
    })
    .await;
    let mut settings = settings(&server.url("/start").replace("http://", "http://node:pa55@"));
    settings.headers.append("x-token", "t0ken".parse().unwrap());
    settings.headers.append("x-token", "more".parse().unwrap());
    let mut bench = Bench::new();
    bench.start(settings);
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
    let asked = server.requests();
    assert!(asked[0].head.starts_with("GET /start ") && asked[1].head.starts_with("GET /next?x=1 "));
    assert!(asked[..2].iter().all(|asked| asked.head.matches("x-token: ").count() == 2), "{asked:?}");
    assert!(asked[0].header("authorization").is_some(), "{asked:?}");
    for asked in other.requests() {
        assert!(asked.header("x-token").is_none() && asked.header("authorization").is_none(), "{asked:?}");
    }
    let known = format!("{:?}", bench.store.load::<LastGood>(SourceKind::Http).unwrap().records);
    assert!(!known.contains("pa55") && !known.contains("t0ken"), "{known}");
}

#[tokio::test]
async fn a_change_of_the_network_ends_the_back_off() {
    let port = Port::claim().unwrap();
    let mut bench = Bench::new();
    // The next pause is of five minutes.
    bench.failures = 20;
    bench.start(settings(&format!("http://127.0.0.1:{}/pods", port.number)));
    bench.until_unavailable().await;
    let _server = Server::start_at(port.number, None, |_| Reply::ok(list(&[("a", "x:1")]))).await;
    bench.network.send_modify(|network| network.changes += 1);
    bench.until_good(&["a-edge1 x:1"]).await;
    bench.stop().await;
}
