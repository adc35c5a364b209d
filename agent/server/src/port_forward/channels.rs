//! `/portForward` in the channel protocol: one connection for each port in the query, over two channels of a
//! WebSocket, data and error. Each channel begins with the port's number.

use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use bytes::BytesMut;
use futures_util::stream::SplitSink;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::channels::{Encoding, send_queued};
use super::{PortForwardState, SessionPermit, Target};
use limpet_host::pod_port::PodPortError;
use limpet_wire::idle::Idle;

/// The protocols, by name; a client that names none gets the first.
pub(super) const PROTOCOLS: [(&str, Encoding); 2] =
    [("v4.channel.k8s.io", Encoding::Binary), ("v4.base64.channel.k8s.io", Encoding::Base64)];
/// The most bytes of a pod in one message.
const MAX_MESSAGE: usize = 16 << 10;
/// The deadline for a client to receive the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel and its data for the client.
type Outgoing = (u8, Bytes);

/// The ports in a query: `port`, one or more times, each with one or more numbers separated by commas.
///
/// # Errors
///
/// What is wrong, in kubelet's words where it has them.
pub(super) fn ports(query: &[(String, String)], encoding: Encoding) -> Result<Vec<u16>, String> {
    let given: Vec<_> = query.iter().filter(|(key, _)| key == "port").map(|(_, value)| value.as_str()).collect();
    if given.is_empty() {
        return Err("query parameter \"port\" is required".to_owned());
    }
    if given.contains(&"") {
        return Err("query parameter \"port\" cannot be empty".to_owned());
    }
    let mut ports = Vec::new();
    for text in given.iter().flat_map(|text| text.split(',')) {
        match text.parse() {
            Ok(0) => return Err(format!("port {text:?} must be > 0")),
            Ok(port) => ports.push(port),
            Err(_) => return Err(format!("unable to parse {text:?} as a port")),
        }
    }
    // Each port has two channels.
    let most = encoding.channels() / 2;
    if ports.len() > most {
        return Err(format!("{} ports are too many: at most {most}", ports.len()));
    }
    Ok(ports)
}

/// Serves a client until the pod has closed every connection, or the client, the pod or the agent ends.
pub(super) async fn serve(
    socket: WebSocket,
    encoding: Encoding,
    ports: Vec<u16>,
    state: PortForwardState,
    target: Target,
    _place: SessionPermit,
) {
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(1);
    let mut forwards = JoinSet::new();
    let mut inputs = Vec::new();
    // [`ports`] has checked that the channels fit a byte.
    for (data_channel, port) in (0..=u8::MAX).step_by(2).zip(ports) {
        let (input, received) = mpsc::channel(1);
        inputs.push(input);
        let connected = (state.connect)(&target, port);
        forwards.spawn(forward(data_channel, port, connected, target.clone(), received, messages.clone()));
    }
    drop(messages);
    let idle = Idle::new(state.idle);
    let mut writer = std::pin::pin!(write(sink, queue, encoding, &idle));
    let mut reader = std::pin::pin!(read(stream, encoding, inputs, &idle));
    tokio::select! {
        // Every connection has ended. A client whose close message is not read would lose the last data.
        () = &mut writer => return drop(timeout(CLOSE_TIMEOUT, reader).await),
        () = &mut reader => return,
        () = idle.expired() => return,
        () = target.ended(&state.observed) => tracing::debug!(pod = %target.key, "port forwarding ended: its pod has ended"),
        () = state.stop.cancelled() => {}
    }
    forwards.shutdown().await;
    // Does not wait longer for a client that reads nothing.
    let _ = timeout(CLOSE_TIMEOUT, writer).await;
}

/// Passes data on to the connections until the client has disconnected.
async fn read(
    mut messages: impl futures_util::Stream<Item = Result<Message, axum::Error>> + Unpin,
    encoding: Encoding,
    inputs: Vec<mpsc::Sender<Bytes>>,
    idle: &Idle,
) {
    while let Some(Ok(message)) = messages.next().await {
        if let Some((channel, data)) = encoding.decode(message) {
            idle.reset();
            // Clients may not send on error channels.
            let input = (channel % 2 == 0).then(|| inputs.get(usize::from(channel / 2))).flatten();
            if let Some(input) = input {
                // Data for a connection that has ended is lost.
                let _ = input.send(data).await;
            }
        }
    }
}

/// Checks that a client's messages for this many ports are decoded in order, each for its port.
///
/// # Panics
///
/// If that does not hold.
pub(crate) fn check_messages(messages: &[Message], encoding: Encoding, ports: usize) {
    // The queues have room for every message, so that no sender waits.
    let room = messages.len().max(1);
    let (inputs, mut outputs): (Vec<_>, Vec<_>) = (0..ports).map(|_| mpsc::channel(room)).unzip();
    let all = stream::iter(messages.iter().cloned().map(Ok));
    assert!(read(all, encoding, inputs, &Idle::new(None)).now_or_never().is_some(), "it waits");
    let mut expected = vec![Vec::new(); ports];
    for (channel, data) in messages.iter().filter_map(|message| encoding.decode(message.clone())) {
        if let (0, Some(port)) = (channel % 2, expected.get_mut(usize::from(channel / 2))) {
            port.push(data);
        }
    }
    let received = outputs.iter_mut().map(|output| std::iter::from_fn(|| output.try_recv().ok()).collect::<Vec<_>>());
    assert!(received.eq(expected), "bytes of another port");
}

/// Sends queued messages, with a ping every now and then, until all connections have ended or the client has
/// disconnected.
async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut queue: mpsc::Receiver<Outgoing>,
    encoding: Encoding,
    idle: &Idle,
) {
    let encode = |(channel, data): Outgoing| encoding.encode(channel, &data);
    if send_queued(&mut sink, &mut queue, encode, idle).await.is_ok() {
        // A client that has disconnected needs no close message.
        let _ = sink.close().await;
    }
}

/// Forwards between the channels of one port and the connection that `connected` opens, until the pod closes it.
async fn forward(
    channel: u8,
    port: u16,
    connected: impl Future<Output = Result<TcpStream, PodPortError>>,
    target: Target,
    input: mpsc::Receiver<Bytes>,
    messages: mpsc::Sender<Outgoing>,
) {
    let number = Bytes::copy_from_slice(&port.to_le_bytes());
    for channel in [channel, channel + 1] {
        // The only error, here and below, is that the client has disconnected.
        if messages.send((channel, number.clone())).await.is_err() {
            return;
        }
    }
    match connected.await {
        Ok(pod) => copy(pod, channel, input, &messages).await,
        Err(cause) => {
            let (pod, uid) = (target.key.name(), &target.uid);
            let message = format!("error forwarding port {port} to pod {pod}, uid {uid}: {cause}");
            tracing::debug!("{message}");
            let _ = messages.send((channel + 1, message.into())).await;
        }
    }
}

/// Copies both ways until the pod sends no more.
async fn copy(pod: TcpStream, channel: u8, mut input: mpsc::Receiver<Bytes>, messages: &mpsc::Sender<Outgoing>) {
    let (from_pod, mut to_pod) = pod.into_split();
    let received = async {
        while let Some(data) = input.recv().await {
            if to_pod.write_all(&data).await.is_err() {
                break;
            }
        }
        // Input after an error is dropped: the response may still be on its way.
        while input.recv().await.is_some() {}
        std::future::pending::<()>().await;
    };
    let sent = async {
        // No buffer is held between pieces.
        while from_pod.readable().await.is_ok() {
            let mut buffer = BytesMut::with_capacity(MAX_MESSAGE);
            let next = match from_pod.try_read_buf(&mut buffer) {
                Ok(1..) => match messages.send((channel, buffer.freeze())).await {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => ControlFlow::Continue(()),
                Ok(0) | Err(_) => ControlFlow::Break(()),
            };
            if next.is_break() {
                return;
            }
        }
    };
    tokio::select! {
        () = sent => {}
        () = received => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_query() {
        let parse = |text: &str| {
            let query: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
            ports(&query, Encoding::Binary)
        };
        assert_eq!(parse("port=80"), Ok(vec![80]));
        assert_eq!(parse("port=80,443&a=1&port=65535"), Ok(vec![80, 443, 65_535]));
        for (wrong, why) in [
            ("", "query parameter \"port\" is required"),
            ("port=80&port=", "query parameter \"port\" cannot be empty"),
            ("port=0", "port \"0\" must be > 0"),
            ("port=65536", "unable to parse \"65536\" as a port"),
            ("port=80,,81", "unable to parse \"\" as a port"),
        ] {
            assert_eq!(parse(wrong).unwrap_err(), why);
        }
        for (encoding, most) in [(Encoding::Binary, 128), (Encoding::Base64, 40)] {
            let parse = |count| ports(&vec![("port".to_owned(), "1".to_owned()); count], encoding);
            assert_eq!(parse(most).map(|ports| ports.len()), Ok(most));
            assert_eq!(parse(most + 1), Err(format!("{} ports are too many: at most {most}", most + 1)));
        }
    }
}
