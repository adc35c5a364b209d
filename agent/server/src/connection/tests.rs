//! Connections over in-memory streams with a paused clock: readers that never read, and callers who are refused.

use axum::body::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use super::super::caller::Origin;
use super::super::caller::tests::{pod, root};
use super::super::gate::NetworkClient;
use super::super::gate::tests::{admitting, with_token};
use super::super::permission::{Permission, Subresource};
use super::super::routes::Routes;
use super::place::{MAX_CONNECTIONS, MAX_OF_PODS, MAX_REFUSED, MAX_STREAMS, MAX_UNKNOWN, MAX_UNNAMED};
use super::*;

/// The buffer of a stream for an unread response, in bytes.
const BUFFER: usize = 1 << 10;
/// The size of an answer.
const PAGE: usize = 64 << 10;

/// Accepts the streams that a test sends.
struct Streams<const IS_NETWORK: bool>(Mutex<mpsc::Receiver<(DuplexStream, Caller, Option<Source>)>>);

impl<const IS_NETWORK: bool> Listener for Streams<IS_NETWORK> {
    type Stream = DuplexStream;
    const IS_NETWORK: bool = IS_NETWORK;

    async fn accept(&self) -> io::Result<(Opening<DuplexStream>, Option<Source>)> {
        match self.0.lock().await.recv().await {
            Some((stream, caller, source)) => Ok((Box::pin(async move { Ok((stream, caller)) }), source)),
            None => std::future::pending().await,
        }
    }
}

struct Server {
    connect: mpsc::Sender<(DuplexStream, Caller, Option<Source>)>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    fn start() -> Self {
        Self::start_on::<false>()
    }

    fn start_on<const IS_NETWORK: bool>() -> Self {
        let page = async || "x".repeat(PAGE);
        let app: Routes = Routes::default().get("/metrics", Permission::Nodes(Subresource::Metrics), page).put(
            "/pod",
            Permission::Write,
            async |body: Bytes| body.len().to_string(),
        );
        let (connect, streams) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(Streams::<IS_NETWORK>(Mutex::new(streams)), app.into_router(), stop.clone()));
        Self { connect, stop, task }
    }

    async fn open(&self, caller: Caller) -> DuplexStream {
        let (near, other) = duplex(BUFFER);
        self.connect.send((other, caller, None)).await.unwrap();
        near
    }

    async fn open_from(&self, address: &str, caller: Caller) -> DuplexStream {
        let (near, other) = duplex(BUFFER);
        self.connect.send((other, caller, Some(Source::new(address.parse().unwrap())))).await.unwrap();
        near
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// Sends one request and reads the whole answer.
async fn ask(mut stream: DuplexStream) -> String {
    stream.write_all(REQUEST).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(start_paused = true)]
async fn readers_that_never_read_are_dropped_and_others_are_served() {
    let server = Server::start();
    let mut stuck = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = server.open(Caller::Anonymous).await;
        stream.write_all(REQUEST).await.unwrap();
        stuck.push(stream);
    }
    // Every place is taken. The next client is served once these are dropped.
    let answer = ask(server.open(Caller::Anonymous).await).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > PAGE, "{} bytes", answer.len());
    for mut stream in stuck {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() <= BUFFER, "dropped after what the stream held: {} bytes", rest.len());
    }
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_slow_is_served() {
    let server = Server::start();
    let mut stream = server.open(Caller::Anonymous).await;
    stream.write_all(REQUEST).await.unwrap();
    let mut piece = [0; BUFFER];
    let mut read = 0;
    loop {
        tokio::time::sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
        match stream.read(&mut piece).await.unwrap() {
            0 => break,
            bytes => read += bytes,
        }
    }
    assert!(read > PAGE, "{read} bytes");
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn refused_callers_take_no_place_of_others_and_have_one_answer() {
    let server = Server::start();
    let pod = || root(Origin::Pod(pod("default/web")));
    let mut waiting = Vec::new();
    for _ in 0..MAX_CONNECTIONS * 2 {
        waiting.push(server.open(pod()).await);
    }
    let answer = ask(server.open(root(Origin::Host)).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let (first, surplus) = (waiting.remove(0), waiting.split_off(MAX_REFUSED - 1));
    for mut stream in surplus {
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "closed at once");
    }
    let mut first = first;
    first.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\nGET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("HTTP/1.1 403 Forbidden").count(), 1, "{answer}");
    assert!(answer.contains(r#""kind":"Status""#) && answer.contains("socketAllowedPods"), "{answer}");
    server.end().await;
}

/// The head of a push whose body has not been sent.
const PUSH: &[u8] = b"PUT /pod HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_arrive_keep_no_other_client_out_for_long() {
    let server = Server::start();
    let mut half = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = server.open(root(Origin::Host)).await;
        stream.write_all(PUSH).await.unwrap();
        stream.write_all(b"hal").await.unwrap();
        half.push(stream);
    }
    // Every place is taken, but few bodies are read at once, and all of them end.
    let answer = ask(server.open(root(Origin::Host)).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for mut stream in half {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    let mut stream = server.open(root(Origin::Host)).await;
    stream.write_all(PUSH).await.unwrap();
    stream.write_all(b"whole").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n5"), "{answer}");
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_from_a_pod_that_is_obeyed_leaves_the_host_its_places() {
    let server = Server::start();
    let mut flood = Vec::new();
    for _ in 0..MAX_CONNECTIONS * 2 {
        flood.push(server.open(root(Origin::AllowedPod(pod("lab/ci")))).await);
    }
    let before = tokio::time::Instant::now();
    let answer = ask(server.open(root(Origin::Host)).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(before.elapsed() < HEAD_TIMEOUT, "the host waited for the pod's connections to end");
    let answer = ask(flood.remove(0)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "the pod is served too: {answer}");
    for mut stream in flood.split_off(MAX_OF_PODS - 1) {
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "closed at once");
    }
    server.end().await;
}

/// Incomplete, malformed and oversized requests: the server responds or closes, and serves the next connection.
#[tokio::test(start_paused = true)]
async fn hostile_bytes_end_their_own_connection_alone() {
    let server = Server::start();
    let mut random = fastrand::Rng::with_seed(24);
    for round in 0..300 {
        let caller = if round % 2 == 0 { root(Origin::Pod(pod("default/web"))) } else { root(Origin::Host) };
        let mut stream = server.open(caller).await;
        let bytes: Vec<u8> = match round % 5 {
            0 => (0..random.usize(1..4_000)).map(|_| random.u8(..)).collect(),
            1 => REQUEST[..random.usize(0..REQUEST.len() - 4)].to_vec(),
            2 => [b"GET /metrics HTTP/1.1\r\nhost: ", &vec![b'a'; MAX_HEAD * 2][..]].concat(),
            3 => b"PUT /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\nbut".to_vec(),
            _ => (0..random.usize(1..200)).flat_map(|_| REQUEST[random.usize(0..40)..].to_vec()).collect(),
        };
        let answered = async {
            // The server may have closed already.
            let _ = stream.write_all(&bytes).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        };
        let answer = tokio::time::timeout(HEAD_TIMEOUT * 4, answered).await;
        let answer = answer.unwrap_or_else(|_| panic!("round {round}: still open"));
        if round % 2 == 0 {
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.contains("HTTP/1.1 200"), "round {round}: a refused caller was served: {text}");
        }
    }
    let answer = ask(server.open(root(Origin::Host)).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.end().await;
}

fn network(client: NetworkClient) -> Caller {
    Caller::Network(Arc::new(client))
}

#[tokio::test(start_paused = true)]
async fn clients_of_whom_nothing_is_known_take_no_place_of_those_who_are_admitted() {
    let server = Server::start();
    let mut flood = Vec::new();
    for _ in 0..MAX_CONNECTIONS * 2 {
        flood.push(server.open(network(with_token())).await);
    }
    let before = tokio::time::Instant::now();
    let answer = ask(server.open(network(admitting("admitted"))).await).await;
    assert!(answer.starts_with("HTTP/1.1 200") && before.elapsed() < HEAD_TIMEOUT, "{answer}");
    for mut stream in flood.split_off(MAX_UNNAMED) {
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "closed at once");
    }
    // The client is refused once, and the connection ends although the client would continue.
    let mut first = flood.remove(0);
    first.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\nGET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("HTTP/1.1 401").count(), 1, "{answer}");
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_admitted_gives_its_place_to_the_next_and_may_read_slowly() {
    let server = Server::start();
    let mut open = Vec::new();
    for _ in 0..MAX_UNNAMED * 2 {
        let mut stream = server.open(network(with_token())).await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nauthorization: Bearer anna\r\n\r\n").await.unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).await.unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
        open.push(stream);
    }
    tokio::time::sleep(WRITE_TIMEOUT * 2).await;
    let mut page = vec![0; PAGE];
    open.remove(0).read_exact(&mut page).await.unwrap();
    drop(open);
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_address_that_says_nothing_holds_up_no_other() {
    // Clients with a certificate delay only one another.
    let kinds: [&dyn Fn() -> Caller; 2] = [&|| Caller::ReadOnly, &|| network(with_token())];
    for kind in kinds {
        let server = Server::start_on::<true>();
        let mut silent = Vec::new();
        for _ in 0..MAX_UNKNOWN {
            silent.push(server.open_from("192.0.2.1", kind()).await);
        }
        let before = tokio::time::Instant::now();
        let mut other = server.open_from("192.0.2.2", kind()).await;
        let head = b"GET /metrics HTTP/1.1\r\nhost: a\r\nauthorization: Bearer anna\r\nconnection: close\r\n\r\n";
        other.write_all(head).await.unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).await.unwrap();
        let at_once = before.elapsed() < HEAD_TIMEOUT;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(at_once, "another address has waited {:?}", before.elapsed());
        drop(silent);
        server.end().await;
    }
}

#[test]
fn a_listener_has_so_many_streams_and_a_place_again_when_one_ends() {
    let open = OpenStreams::default();
    let mut places: Vec<_> = std::iter::from_fn(|| open.enter().ok()).collect();
    assert_eq!(places.len(), MAX_STREAMS);
    assert!(open.clone().enter().unwrap_err().contains("try again later"), "clones share the places");
    places.pop();
    assert!(open.enter().is_ok());
}
