//! Commands in a real container over a real socket, by a client of the protocol and by the command line.

use axum::routing::get;
use axum::{Json, Router};
use clap::Parser as _;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::caller::tests::for_host;
use super::*;
use limpet_cli::ClientCommand;
use limpet_cli::error::CliError;
use limpet_cli::screen::Screen;
use limpet_containerd::fixtures::TestContainer;
use limpet_wire::command::{Channel, PROTOCOL_V4, PROTOCOL_V5, parse_status, size as size_message};
use limpet_wire::pods::PodNames;
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::spdy::connection::{Handle, Input, Role as SpdyRole, Stream, connection};
use limpet_wire::spdy::headers::Headers;

struct Node {
    container: TestContainer,
    client: SocketClient,
    stop: CancellationToken,
}

impl Node {
    async fn start() -> Option<Self> {
        Self::with_idle_timeout(None).await
    }

    async fn with_idle_timeout(idle: IdleTimeout) -> Option<Self> {
        let container = TestContainer::start()?;
        let socket = container.rootfs().with_file_name("limpet.sock");
        let stop = CancellationToken::new();
        let id = container.id.clone();
        let lookup = move |target: &ExecTarget| match target.container.as_str() {
            "app" => Ok(id.clone()),
            other => Err(ExecLookupError::NotRunning(other.to_owned())),
        };
        let state = ExecState {
            client: container.client.clone(),
            fifo_dir: container.fifo_dir(),
            lookup: Arc::new(lookup),
            idle,
            stop: stop.clone(),
        };
        let names = PodNames {
            namespace: "default".to_owned(),
            name: "web-edge1".to_owned(),
            manifest_name: "web".to_owned(),
            containers: vec!["app".to_owned(), "gone".to_owned()],
        };
        let names = Router::new().route("/limpet/v1/names", get(async || Json([names])));
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move { axum::serve(listener, for_host(routes(state).into_router()).merge(names)).await });
        Some(Self { container, client: SocketClient::new(&socket), stop })
    }

    async fn connect(&self, query: &str, protocol: &str) -> Result<Socket, ClientError> {
        let path = format!("/exec/default/web-edge1/app?{query}");
        let stream = self.client.upgrade(&path, protocol).await?;
        Ok(Socket(WebSocketStream::from_raw_socket(stream, Role::Client, None).await))
    }

    async fn limpet_exec(&self, line: &[&str]) -> Result<u8, CliError> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(subcommand)]
            command: ClientCommand,
        }
        let line = Line::parse_from(["limpet", "exec"].iter().chain(line));
        limpet_cli::run(line.command, &self.client, Screen::new(true, false)).await
    }
}

struct Socket(WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>);

impl Socket {
    async fn send(&mut self, channel: Channel, data: &[u8]) {
        self.0.send(Message::Binary(channel.message(data).into())).await.unwrap();
    }

    /// Reads until `text` has arrived on stdout.
    async fn expect(&mut self, text: &str) {
        let mut out = Vec::new();
        while !String::from_utf8_lossy(&out).contains(text) {
            let message = self.0.next().await.unwrap().unwrap().into_data();
            if let Some((Channel::Stdout, data)) = Channel::split(&message) {
                out.extend_from_slice(data);
            }
        }
    }

    /// Reads to the end. Returns stdout, stderr and the exit code or error.
    async fn finish(mut self) -> (String, String, Result<i32, String>) {
        let (mut out, mut err, mut status) = (Vec::new(), Vec::new(), Err("none came".to_owned()));
        while let Some(Ok(message)) = self.0.next().await {
            if let Message::Binary(data) = message {
                match Channel::split(&data).unwrap() {
                    (Channel::Stdout, data) => out.extend_from_slice(data),
                    (Channel::Stderr, data) => err.extend_from_slice(data),
                    (Channel::Error, data) => status = parse_status(data),
                    other => panic!("{other:?}"),
                }
            }
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), status)
    }
}

#[tokio::test]
async fn remotecommand_protocol_carries_streams_and_exit_codes() {
    let Some(node) = Node::start().await else { return };
    for protocol in [PROTOCOL_V4, PROTOCOL_V5] {
        let query = "command=sh&command=-c&command=echo+out;+echo+err+%3E%262;+exit+3&output=1&error=1";
        let socket = node.connect(query, protocol).await.unwrap();
        assert_eq!(socket.finish().await, ("out\n".to_owned(), "err\n".to_owned(), Ok(3)));
    }

    // Tests stdin and its end, and output larger than all buffers. Unrequested stderr does not block.
    let script = "command=sh&command=-c&command=yes+error+%7C+head+-c+300000+%3E%262;+cat&input=1&output=1";
    let mut socket = node.connect(script, PROTOCOL_V5).await.unwrap();
    let input = b"0123456789abcde\n".repeat(1 << 10);
    for _ in 0..3 {
        socket.send(Channel::Stdin, &input).await;
    }
    socket.send(Channel::Close, &[0]).await;
    let (out, err, status) = socket.finish().await;
    assert_eq!((out.len(), err.as_str(), status), (3 * input.len(), "", Ok(0)));

    // Tests a terminal and its size.
    let script = "command=sh&command=-c&command=read+go;+stty+size&input=1&output=1&error=1&tty=1";
    let mut socket = node.connect(script, PROTOCOL_V5).await.unwrap();
    socket.send(Channel::Resize, &size_message(100, 30)).await;
    socket.send(Channel::Stdin, b"go\r").await;
    let (out, _, status) = socket.finish().await;
    assert_eq!((out.as_str(), status), ("go\r\n30 100\r\n", Ok(0)));

    // A child process that keeps the output open does not keep the session open.
    let script = "command=sh&command=-c&command=sleep+4+%26+echo+done&output=1";
    let socket = node.connect(script, PROTOCOL_V5).await.unwrap();
    assert_eq!(socket.finish().await, ("done\n".to_owned(), String::new(), Ok(0)));
    node.container.all_cleaned_up().await;
}

/// A client of SPDY, like an apiserver, with the streams of these names.
async fn spdy<const COUNT: usize>(node: &Node, query: &str, kinds: [&str; COUNT]) -> (Handle, [Stream; COUNT]) {
    spdy_of(node, query, kinds, PROTOCOL_V4).await
}

/// The same with a version of the protocol.
async fn spdy_of<const COUNT: usize>(
    node: &Node,
    query: &str,
    kinds: [&str; COUNT],
    protocol: &str,
) -> (Handle, [Stream; COUNT]) {
    let io = node.client.upgrade_spdy(&format!("/exec/default/web-edge1/app?{query}"), protocol).await.unwrap();
    let (client, driver) = connection(io, SpdyRole::Client, None);
    tokio::spawn(driver);
    let open = kinds.map(|kind| client.open(Headers::new(&[("streamtype", kind)])));
    let streams: Vec<_> = futures_util::future::try_join_all(open).await.unwrap();
    (client, streams.try_into().unwrap())
}

async fn text(input: &mut Input) -> String {
    let mut data = Vec::new();
    while let Some(piece) = input.read().await {
        data.extend_from_slice(&piece);
    }
    String::from_utf8(data).unwrap()
}

#[tokio::test]
async fn remotecommand_over_spdy_carries_streams_and_exit_codes() {
    let Some(node) = Node::start().await else { return };
    let query = "command=sh&command=-c&command=echo+out;+echo+err+%3E%262;+exit+3&output=1&error=1";
    let (_client, [mut error, mut out, mut err]) = spdy(&node, query, ["error", "stdout", "stderr"]).await;
    let (out, err, status) = tokio::join!(text(&mut out.input), text(&mut err.input), text(&mut error.input));
    assert_eq!((&*out, &*err, parse_status(status.as_bytes())), ("out\n", "err\n", Ok(3)));

    // Tests stdin and its end, and output larger than all buffers.
    let query = "command=cat&input=1&output=1";
    let (_client, [mut error, stdin, mut out]) = spdy(&node, query, ["error", "stdin", "stdout"]).await;
    let input = "0123456789abcde\n".repeat(64 << 10);
    let send = async {
        stdin.output.write(input.clone().into()).await.unwrap();
        stdin.output.finish().await;
    };
    let (out, status, ()) = tokio::join!(text(&mut out.input), text(&mut error.input), send);
    assert!(out == input, "{} bytes", out.len());
    assert_eq!(parse_status(status.as_bytes()), Ok(0));

    // Tests a terminal and its size.
    let query = "command=sh&command=-c&command=until+%5B+%22%24%28stty+size%29%22+%3D+%2230+100%22+%5D;+do+sleep+0.1;\
                 +done;+echo+sized&input=1&output=1&error=1&tty=1";
    let (_client, [_error, _stdin, mut out, resize]) = spdy(&node, query, ["error", "stdin", "stdout", "resize"]).await;
    resize.output.write([size_message(100, 30), b"\n".to_vec()].concat().into()).await.unwrap();
    let out = text(&mut out.input).await;
    assert!(out.ends_with("sized\r\n"), "{out}");
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn old_versions_have_texts_for_failures_and_sizes_from_the_third_on() {
    let Some(node) = Node::start().await else { return };
    let failing = "command=sh&command=-c&command=echo+out;+exit+3&output=1";
    for (version, expected) in [
        ("v3.channel.k8s.io", "command terminated with non-zero exit code: 3"),
        ("v2.channel.k8s.io", "command terminated with non-zero exit code: 3"),
        ("channel.k8s.io", ""),
    ] {
        let (_client, [mut error, mut out]) = spdy_of(&node, failing, ["error", "stdout"], version).await;
        let (out, error) = tokio::join!(text(&mut out.input), text(&mut error.input));
        assert_eq!((&*out, &*error), ("out\n", expected), "{version}");
        let query = "command=sh&command=-c&command=:&output=1";
        let (_client, [mut error, mut out]) = spdy_of(&node, query, ["error", "stdout"], version).await;
        let (out, error) = tokio::join!(text(&mut out.input), text(&mut error.input));
        assert_eq!((&*out, &*error), ("", ""), "{version}");
    }
    let query = "command=sh&command=-c&command=until+%5B+%22%24%28stty+size%29%22+%3D+%2230+100%22+%5D;+do+sleep+0.1;\
                 +done;+echo+sized&output=1&tty=1";
    let kinds = ["error", "stdout", "resize"];
    let (_client, [_error, mut out, resize]) = spdy_of(&node, query, kinds, "v3.channel.k8s.io").await;
    resize.output.write(size_message(100, 30).into()).await.unwrap();
    resize.output.write(b"\n".to_vec().into()).await.unwrap();
    assert!(text(&mut out.input).await.ends_with("sized\r\n"));
    // Before version 3 the client opens no stream of sizes.
    let query = "command=echo&command=at+a+terminal&output=1&tty=1";
    let (_client, [_error, mut out]) = spdy_of(&node, query, ["error", "stdout"], "v2.channel.k8s.io").await;
    assert_eq!(text(&mut out.input).await, "at a terminal\r\n");

    for (protocol, encoding) in [
        ("v4.base64.channel.k8s.io", Encoding::Base64),
        ("base64.channel.k8s.io", Encoding::Base64),
        ("channel.k8s.io", Encoding::Binary),
    ] {
        let query = "command=sh&command=-c&command=head+-c+4;+exit+3&input=1&output=1";
        let Socket(mut socket) = node.connect(query, protocol).await.unwrap();
        let input = match encoding.encode(0, b"fooo") {
            axum::extract::ws::Message::Text(text) => Message::Text(text.as_str().into()),
            other => Message::Binary(other.into_data()),
        };
        socket.send(input).await.unwrap();
        let mut received: [Vec<u8>; 4] = Default::default();
        while let Some(Ok(message)) = socket.next().await {
            let message = match message {
                Message::Text(text) => axum::extract::ws::Message::Text(text.as_str().into()),
                Message::Binary(data) => axum::extract::ws::Message::Binary(data),
                _ => continue,
            };
            let (channel, data) = encoding.decode(message).unwrap();
            received[usize::from(channel)].extend_from_slice(&data);
        }
        let [_, out, _, status] = received;
        let expected = match protocol.starts_with("v4") {
            true => limpet_wire::command::exit_status(3),
            false => b"command terminated with non-zero exit code: 3".to_vec(),
        };
        assert_eq!((&*out, status), (&b"fooo"[..], expected), "{protocol}");
    }
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn a_process_is_killed_with_its_spdy_client() {
    let Some(node) = Node::start().await else { return };
    let query = form_urlencoded::Serializer::new("output=1".to_owned())
        .extend_pairs(["sh", "-c", &node.container.endless()].map(|word| ("command", word)))
        .finish();
    let (client, [_error, mut out]) = spdy(&node, &query, ["error", "stdout"]).await;
    let said = out.input.read().await.unwrap();
    assert!(said.starts_with(b"ready"), "{said:?}");
    client.close().await;
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn a_process_is_killed_when_its_stream_is_idle() {
    let Some(node) = Node::with_idle_timeout(Some(std::time::Duration::from_millis(500))).await else { return };
    let query = form_urlencoded::Serializer::new("input=1&output=1".to_owned())
        .extend_pairs(["sh", "-c", &node.container.endless()].map(|word| ("command", word)))
        .finish();
    let socket = node.connect(&query, PROTOCOL_V5).await.unwrap();
    let (_client, [mut error, _stdin, mut out]) = spdy(&node, &query, ["error", "stdin", "stdout"]).await;
    assert_eq!(socket.finish().await.2, Err("none came".to_owned()));
    let (_, status) = tokio::join!(text(&mut out.input), text(&mut error.input));
    assert_eq!(status, "");
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn a_process_is_killed_with_its_client_and_with_the_agent() {
    let Some(node) = Node::start().await else { return };
    let script = form_urlencoded::Serializer::new("input=1&output=1".to_owned())
        .extend_pairs(["sh", "-c", &node.container.endless()].map(|word| ("command", word)))
        .finish();
    let mut socket = node.connect(&script, PROTOCOL_V5).await.unwrap();
    socket.expect("ready").await;
    drop(socket);
    node.container.all_cleaned_up().await;

    let mut socket = node.connect(&script, PROTOCOL_V5).await.unwrap();
    socket.expect("ready").await;
    node.stop.cancel();
    assert_eq!(socket.finish().await.2, Err("none came".to_owned()));
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn limpet_exec_exits_with_the_commands_exit_code() {
    let Some(node) = Node::start().await else { return };
    for (line, code) in [
        (&["web", "--", "sh", "-c", "exit 0"][..], 0),
        (&["web", "--", "sh", "-c", "echo 'a & b' >&2; exit 5"], 5),
        (&["default/web-edge1", "-c", "app", "--", "nope"], 127),
        (&["web", "--", "/etc"], 126),
        (&["web", "-t", "--", "sh", "-c", "kill -9 $$"], 137),
    ] {
        assert_eq!(node.limpet_exec(line).await.unwrap(), code, "{line:?}");
    }
    for (line, expected) in [
        (&["web", "-c", "gone", "--", "ls"][..], "container not found (\"gone\")"),
        (&["web", "-c", "other", "--", "ls"], "no container other in pod web-edge1; there are: app, gone"),
    ] {
        assert_eq!(node.limpet_exec(line).await.unwrap_err().to_string(), expected, "{line:?}");
    }
    node.container.all_cleaned_up().await;
}

#[tokio::test]
async fn invalid_requests_fail_before_the_upgrade() {
    let Some(node) = Node::start().await else { return };
    for (query, protocol, expected) in [
        ("output=1", PROTOCOL_V5, "you must specify a command"),
        ("command=ls", PROTOCOL_V5, "you must specify at least 1 of stdin, stdout, stderr"),
        (
            "command=ls&output=1",
            "v6.channel.k8s.io",
            "none of the subprotocols is supported; use one of v5.channel.k8s.io, v4.channel.k8s.io, \
             v4.base64.channel.k8s.io, channel.k8s.io, base64.channel.k8s.io",
        ),
    ] {
        match node.connect(query, protocol).await {
            Err(ClientError::Refused { status: 400, message }) => assert_eq!(message, expected),
            other => panic!("{query}: {:?}", other.map(|_| ())),
        }
    }
}
