//! The fuzz target for a client's bytes on a WebSocket: its frames, and the channels of commands and of ports.

use std::future::ready;

use axum::extract::ws::Message;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::io::{join, sink};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::io::StreamReader;

use super::channels::{Encoding, MAX_MESSAGE, READ_BUFFER};
use super::exec::check_messages as check_commands;
use super::port_forward::check_messages as check_ports;

/// Feeds a client's bytes to a WebSocket of commands and to one of ports, both at once and byte by byte. The messages
/// must be equal and within the limits. The first byte selects the protocol.
///
/// # Panics
///
/// If that does not hold.
pub fn check(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let encoding = if choice & 1 == 0 { Encoding::Binary } else { Encoding::Base64 };
    let messages = messages(bytes, bytes.len());
    assert_eq!(messages, self::messages(bytes, 1), "messages depend on how the bytes arrive");
    for message in &messages {
        let Some((channel, data)) = encoding.decode(message.clone()) else { continue };
        assert!(data.len() < MAX_MESSAGE, "{} bytes", data.len());
        if usize::from(channel) < encoding.channels() {
            let again = encoding.decode(encoding.encode(channel, &data));
            assert_eq!(again, Some((channel, data)), "written otherwise than read");
        }
    }
    check_commands(&messages, encoding, choice & 2 != 0);
    check_ports(&messages, encoding, usize::from(choice >> 2) + 1);
}

/// The messages of a client that sends `bytes` in pieces of `step`.
fn messages(bytes: &[u8], step: usize) -> Vec<Message> {
    let pieces = bytes.chunks(step.max(1)).map(Ok::<_, std::io::Error>);
    let io = join(StreamReader::new(stream::iter(pieces)), sink());
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let read = async {
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let whole = socket.take_while(|message| ready(message.is_ok()));
        whole.filter_map(|message| ready(message.ok().and_then(of_frame))).collect().await
    };
    // All bytes are available and the reader takes them all, so nothing waits.
    read.now_or_never().unwrap_or_default()
}

/// axum's form of the message; `None` for the close frame, which ends the stream.
fn of_frame(frame: Frame) -> Option<Message> {
    match frame {
        Frame::Text(text) => Some(Message::Text(text.as_str().into())),
        Frame::Binary(data) => Some(Message::Binary(data)),
        Frame::Ping(data) => Some(Message::Ping(data)),
        Frame::Pong(data) => Some(Message::Pong(data)),
        Frame::Close(_) | Frame::Frame(_) => None,
    }
}
