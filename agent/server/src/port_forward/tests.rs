//! Ports of this machine forwarded over the route, by clients of SPDY and of the tunnel.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role as WebSocketRole;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::super::caller::tests::for_host;
use super::*;
use limpet_core::fixtures::observed;
use limpet_wire::port_forward::{PORT, REQUEST_ID, STREAM_TYPE};
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::spdy::connection::{Handle, Role, Stream, connection};
use limpet_wire::spdy::headers::Headers;

/// A server with the route and one pod, whose ports are this machine's.
struct Node {
    observed: Observed,
    client: SocketClient,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

fn key() -> PodKey {
    PodKey::new("default", "web-edge1")
}

fn web() -> Arc<ObservedPod> {
    observed(json!({
        "metadata": {"name": "web-edge1", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        "status": {"phase": "Running"},
    }))
}

impl Node {
    async fn start() -> Self {
        Self::with_idle_timeout(None).await
    }

    async fn with_idle_timeout(idle: IdleTimeout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("limpet.sock");
        let (all, stop) = (Observed::default(), CancellationToken::new());
        all.publish(&key(), Some(web()));
        let state = PortForwardState {
            observed: all.clone(),
            connect: Arc::new(|_, port| Box::pin(pod_port::connect(None, port))),
            sessions: Arc::new(Semaphore::new(2)),
            idle,
            stop: stop.clone(),
        };
        let app = for_host(routes(state).into_router());
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { observed: all, client: SocketClient::new(&socket), stop, _dir: dir }
    }

    async fn spdy(&self, path: &str) -> Result<Handle, ClientError> {
        Ok(drive(self.client.upgrade_spdy(path, PROTOCOL).await?))
    }

    async fn tunnel(&self, path: &str) -> Handle {
        let stream = self.client.upgrade(path, TUNNEL).await.unwrap();
        let socket = WebSocketStream::from_raw_socket(stream, WebSocketRole::Client, None).await;
        let (sink, stream) = socket.split();
        let received = stream.filter_map(async |message| match message {
            Ok(Message::Binary(data)) => Some(Ok(data)),
            Ok(_) => None,
            Err(error) => Some(Err(std::io::Error::other(error))),
        });
        let sent =
            sink.sink_map_err(std::io::Error::other).with(async |data| Ok::<_, std::io::Error>(Message::Binary(data)));
        drive(tokio::io::join(StreamReader::new(Box::pin(received)), SinkWriter::new(CopyToBytes::new(Box::pin(sent)))))
    }
}

fn drive(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Handle {
    let (handle, driver) = connection(io, Role::Client, None);
    tokio::spawn(driver);
    handle
}

async fn open(client: &Handle, kind: &str, port: u16, request: u32) -> Stream {
    let headers = [(STREAM_TYPE, kind), (PORT, &port.to_string()), (REQUEST_ID, &request.to_string())];
    client.open(Headers::new(&headers)).await.unwrap()
}

async fn all(stream: &mut Stream) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(piece) = stream.input.read().await {
        data.extend_from_slice(&piece);
    }
    data
}

/// A server that returns all data once the client has ended its input.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut data = Vec::new();
                stream.read_to_end(&mut data).await.unwrap();
                stream.write_all(&data).await.unwrap();
            });
        }
    });
    port
}

/// Sends `data` over a new pair of streams and returns what each stream receives.
async fn exchange(client: &Handle, port: u16, request: u32, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut error, mut stream) =
        (open(client, "error", port, request).await, open(client, "data", port, request).await);
    error.output.finish().await;
    stream.output.write(data.to_vec().into()).await.unwrap();
    stream.output.finish().await;
    tokio::join!(all(&mut stream), all(&mut error))
}

#[tokio::test]
async fn many_connections_carry_their_own_bytes_over_spdy_and_over_a_websocket() {
    let (node, port) = (Node::start().await, echo().await);
    for client in [
        node.spdy("/portForward/default/web-edge1").await.unwrap(),
        node.tunnel("/portForward/default/web-edge1/u1").await,
    ] {
        let connections = (0..100_u32).map(|number| {
            let data: Vec<u8> = (0..30_000 + number).map(|byte| (byte ^ number) as u8).collect();
            let client = &client;
            async move { assert!(exchange(client, port, number, &data).await == (data, vec![]), "connection {number}") }
        });
        futures_util::future::join_all(connections).await;
    }
}

#[tokio::test]
async fn channels_of_a_websocket_carry_each_port_and_say_what_fails() {
    let (node, port) = (Node::start().await, echo().await);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for (protocol, encoding) in channels::PROTOCOLS {
        let path = format!("/portForward/default/web-edge1?port={port},{closed}&port={port}");
        let stream = node.client.upgrade(&path, protocol).await.unwrap();
        let mut socket = WebSocketStream::from_raw_socket(stream, WebSocketRole::Client, None).await;
        let mut received: [Vec<u8>; 6] = Default::default();
        // An echo server responds at the end of input, which this protocol cannot signal. Messages on unknown
        // channels are ignored.
        let sent: [(u8, &[u8]); 4] =
            [(0, b"to the first"), (4, b"to the third"), (3, b"to an error"), (9, b"to nobody")];
        for (channel, data) in sent {
            let message = match encoding.encode(channel, data) {
                axum::extract::ws::Message::Text(text) => Message::Text(text.as_str().into()),
                other => Message::Binary(other.into_data()),
            };
            socket.send(message).await.unwrap();
        }
        while received[3].len() < 3 || received[..3].iter().chain(&received[4..]).any(|channel| channel.len() < 2) {
            let message = match socket.next().await.unwrap().unwrap() {
                Message::Text(text) => axum::extract::ws::Message::Text(text.as_str().into()),
                other => axum::extract::ws::Message::Binary(other.into_data()),
            };
            if let Some((channel, data)) = encoding.decode(message) {
                received[usize::from(channel)].extend_from_slice(&data);
            }
        }
        for (channel, forwarded) in received.iter().zip([port, port, closed, closed, port, port]) {
            assert_eq!(channel[..2], forwarded.to_le_bytes(), "{protocol}");
        }
        let error = String::from_utf8_lossy(&received[3][2..]);
        assert!(error.starts_with(&format!("error forwarding port {closed} to pod web-edge1, uid u1: ")), "{error}");
    }
}

#[tokio::test]
async fn channels_carry_what_a_pod_sends_until_it_ends() {
    let (node, listener) = (Node::start().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let stream =
        node.client.upgrade(&format!("/portForward/default/web-edge1?port={port}"), "v4.channel.k8s.io").await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(stream, WebSocketRole::Client, None).await;
    let (mut pod, _) = listener.accept().await.unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|byte| (byte % 251) as u8).collect();
    for piece in data.chunks(30_000) {
        socket.send(Message::Binary([&[0], piece].concat().into())).await.unwrap();
    }
    let (mut got, mut back) = (vec![0; data.len()], Vec::new());
    pod.read_exact(&mut got).await.unwrap();
    assert!(got == data, "to the pod");
    let answers = async {
        pod.write_all(&data).await.unwrap();
        drop(pod);
    };
    let reads = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Binary(message) = message
                && message[0] == 0
            {
                back.extend_from_slice(&message[1..]);
            }
        }
    };
    tokio::join!(answers, reads);
    assert!(back[..2] == port.to_le_bytes() && back[2..] == data, "{} bytes from the pod", back.len());
}

#[tokio::test]
async fn a_client_that_is_idle_is_disconnected_in_every_protocol() {
    let node = Node::with_idle_timeout(Some(std::time::Duration::from_millis(100))).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let path = format!("/portForward/default/web-edge1?port={port}");
    let stream = node.client.upgrade(&path, "v4.channel.k8s.io").await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(stream, WebSocketRole::Client, None).await;
    let (mut pod, _) = listener.accept().await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
    assert!(matches!(pod.read(&mut [0; 1]).await, Ok(0) | Err(_)));

    for mut client in [node.spdy(&path).await.unwrap(), node.tunnel(&path).await] {
        assert!(client.accept().await.is_none());
    }
}

#[tokio::test]
async fn a_port_without_a_listener_is_an_error_and_the_next_connection_works() {
    let (node, port) = (Node::start().await, echo().await);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let client = node.spdy("/portForward/default/web-edge1").await.unwrap();
    let (data, error) = exchange(&client, closed, 0, b"hello").await;
    let (error, expected) =
        (String::from_utf8(error).unwrap(), format!("error forwarding port {closed} to pod web-edge1, uid u1: "));
    assert!(data.is_empty() && error.starts_with(&expected) && error.contains("refused"), "{error}");
    // Opens half a pair, and a stream that belongs to none.
    let waiting = open(&client, "data", port, 1).await;
    let wrong = open(&client, "stdin", port, 1).await;
    wrong.reset.cancelled().await;
    assert!(!waiting.reset.is_cancelled());
    assert_eq!(exchange(&client, port, 2, b"hello").await, (b"hello".to_vec(), vec![]));
}

#[tokio::test]
async fn a_reset_closes_the_connection_to_the_pod() {
    let (node, listener) = (Node::start().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let client = node.spdy("/portForward/default/web-edge1").await.unwrap();
    let (mut error, data) = (open(&client, "error", port, 0).await, open(&client, "data", port, 0).await);
    let (mut pod, _) = listener.accept().await.unwrap();
    data.output.reset(limpet_wire::spdy::frame::Status::Cancel).await;
    assert_eq!(all(&mut error).await, b"");
    // The connection is closed, or reset if something was unread.
    assert!(matches!(pod.read(&mut [0; 1]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn sessions_end_with_their_pod_and_with_the_agent() {
    let (node, listener) = (Node::start().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let ends: [&dyn Fn(); 2] = [&|| drop(node.observed.publish(&key(), None)), &|| node.stop.cancel()];
    for end in ends {
        node.observed.publish(&key(), Some(web()));
        let client = node.spdy("/portForward/default/web-edge1").await.unwrap();
        let (_error, mut data) = (open(&client, "error", port, 0).await, open(&client, "data", port, 0).await);
        let (mut pod, _) = listener.accept().await.unwrap();
        end();
        assert_eq!(all(&mut data).await, b"");
        assert!(matches!(pod.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    }
}

#[tokio::test]
async fn what_cannot_be_forwarded_is_refused_before_the_upgrade() {
    let node = Node::start().await;
    for (path, protocol, status) in [
        ("/portForward/default/db-edge1", PROTOCOL, 404),
        ("/portForward/default/web-edge1/u2", PROTOCOL, 404),
        ("/portForward/default/web-edge1", "v4.channel.k8s.io", 403),
    ] {
        match node.client.upgrade_spdy(path, protocol).await {
            Err(ClientError::Refused { status: refused, .. }) => assert_eq!(refused, status, "{path}"),
            other => panic!("{path}: {:?}", other.map(drop)),
        }
    }
    match node.client.upgrade("/portForward/default/web-edge1", "v9.channel.k8s.io").await {
        Err(ClientError::Refused { status: 400, message }) => assert!(message.contains(TUNNEL), "{message}"),
        other => panic!("{:?}", other.map(drop)),
    }
    match node.client.upgrade("/portForward/default/web-edge1?port=0", "v4.channel.k8s.io").await {
        Err(ClientError::Refused { status: 400, message }) => assert_eq!(message, "port \"0\" must be > 0"),
        other => panic!("{:?}", other.map(drop)),
    }
    // Opens as many clients as are allowed.
    let path = "/portForward/default/web-edge1";
    let _clients = (node.spdy(path).await.unwrap(), node.spdy(path).await.unwrap());
    assert!(matches!(node.spdy(path).await, Err(ClientError::Refused { status: 503, .. })));
}
