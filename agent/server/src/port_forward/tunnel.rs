//! A WebSocket as a stream of bytes: the content of its binary messages, one after the other.

use std::future::ready;
use std::io;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

/// The bytes of `socket`, read and written. Shut down, it is closed.
pub(super) fn bytes(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Send {
    let (sink, stream) = socket.split();
    let received = stream.filter_map(|message| {
        ready(match message {
            Ok(Message::Binary(data)) => Some(Ok(data)),
            Ok(Message::Text(_)) => Some(Err(io::Error::other("a text message"))),
            // After a close message the stream ends by itself.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let sent = sink.sink_map_err(io::Error::other).with(|data: Bytes| ready(Ok::<_, io::Error>(Message::Binary(data))));
    join(StreamReader::new(received), SinkWriter::new(CopyToBytes::new(sent)))
}
