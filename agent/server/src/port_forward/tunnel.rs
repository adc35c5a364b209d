//! A WebSocket as a byte stream: the concatenated content of its binary messages.

use std::future::ready;
use std::io;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

/// Reads and writes the bytes of `socket`. Shutting the stream down closes the socket.
pub(super) fn bytes(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Send {
    let (sink, stream) = socket.split();
    let received = stream.filter_map(|message| {
        ready(match message {
            Ok(Message::Binary(data)) => Some(Ok(data)),
            Ok(Message::Text(_)) => Some(Err(io::Error::other("a text message"))),
            // The stream ends by itself after a close message.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let sent = sink.sink_map_err(io::Error::other).with(|data: Bytes| ready(Ok::<_, io::Error>(Message::Binary(data))));
    join(StreamReader::new(received), SinkWriter::new(CopyToBytes::new(sent)))
}
