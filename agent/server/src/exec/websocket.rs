//! Serves a command over a WebSocket: one byte for the channel, then data ([`limpet_wire::command`]).

use std::future::ready;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::SplitSink;
use futures_util::{FutureExt as _, Sink, SinkExt, Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::channels::{Encoding, send_queued};
use super::protocol::Version;
use super::session::{self, CLOSE_TIMEOUT, OUTPUT_QUEUE_LEN, Session};
use super::streams::{Incoming, Outgoing};
use limpet_wire::command::{Channel, parse_size};
use limpet_wire::idle::Idle;

pub(super) async fn serve(socket: WebSocket, session: Session, encoding: Encoding) {
    let closable = session.version >= Version::V5;
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(OUTPUT_QUEUE_LEN);
    // Like kubelet, sends an empty message, which tells the client that it is connected.
    let first = match (session.streams.stdout, session.streams.stderr) {
        (true, _) => Channel::Stdout,
        (false, true) => Channel::Stderr,
        (false, false) => Channel::Error,
    };
    // This cannot fail: the queue is empty, and its receiver lives in this function.
    let _ = messages.send((first, Bytes::new())).await;
    let idle = Idle::new(session.idle);
    let mut client = Box::pin(incoming(stream, closable, encoding, &idle));
    let stop = session.stop.clone();
    tokio::select! {
        () = session::serve(&mut client, messages, write(sink, queue, encoding, &idle), session) => {}
        () = idle.expired() => return,
    }
    // RFC 6455, 5.5.1: the connection is closed after the client's own close message. Closing it earlier, with unread
    // bytes of the client, would reset it, and an apiserver in between would lose what it has not passed on.
    let closed = async { while client.next().await.is_some() {} };
    tokio::select! {
        _ = timeout(CLOSE_TIMEOUT, closed) => {}
        () = stop.cancelled() => {}
    }
}

/// The client's messages, until it disconnects.
fn incoming(
    stream: impl Stream<Item = Result<Message, axum::Error>>,
    closable: bool,
    encoding: Encoding,
    idle: &Idle,
) -> impl Stream<Item = Incoming> {
    let open = stream.take_while(|message| ready(!matches!(message, Err(_) | Ok(Message::Close(_)))));
    open.filter_map(move |message| {
        let message = message.ok().and_then(|message| encoding.decode(message));
        let Some((channel, data)) = message else { return ready(None) };
        idle.reset();
        ready(match Channel::from_number(channel) {
            Some(Channel::Stdin) => Some(Incoming::Stdin(data)),
            Some(Channel::Close) if closable && *data == [0] => Some(Incoming::StdinEnd),
            Some(Channel::Resize) => parse_size(&data).map(|(width, height)| Incoming::Size(width, height)),
            // Clients may not send on the other channels; kubelet ignores them too.
            _ => None,
        })
    })
}

/// Sends queued messages, with a ping every now and then, until the queue is closed or the client has disconnected.
async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut queue: mpsc::Receiver<Outgoing>,
    encoding: Encoding,
    idle: &Idle,
) {
    let encode = |(channel, data): Outgoing| encoding.encode(channel as u8, &data);
    if send_queued(&mut sink, &mut queue, encode, idle).await.is_ok() {
        close(sink).await;
    }
}

/// Checks how a client's messages are decoded: input amounts to no more than was sent, and only a version that can
/// close input has its end.
///
/// # Panics
///
/// If that does not hold.
pub(crate) fn check_messages(messages: &[Message], encoding: Encoding, closable: bool) {
    let (idle, all) = (Idle::new(None), stream::iter(messages.iter().cloned().map(Ok)));
    let received: Vec<_> = incoming(all, closable, encoding, &idle).collect().now_or_never().unwrap_or_default();
    let length = |message: &Message| match message {
        Message::Text(text) => text.len(),
        Message::Binary(data) => data.len(),
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => 0,
    };
    let (mut input, mut ends) = (0, false);
    for message in received {
        match message {
            Incoming::Stdin(data) => input += data.len(),
            Incoming::StdinEnd => ends = true,
            Incoming::Size(..) => {}
        }
    }
    let sent: usize = messages.iter().map(length).sum();
    assert!(input <= sent && (closable || !ends), "{input} bytes of input of {sent}, ends: {ends}");
}

async fn close(mut sink: impl Sink<Message> + Unpin) {
    let normal = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    // A client that has disconnected needs no close message.
    let _ = sink.send(Message::Close(Some(normal))).await;
}
