//! Copies bytes between a TCP connection and a stream.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::connection::{Ended, Input, Output};
use super::frame::MAX_DATA;

/// Sends data from the TCP connection, up to its end or error, and counts each piece. No buffer is held between
/// pieces.
///
/// # Errors
///
/// The SPDY connection has ended.
pub async fn send(from: &OwnedReadHalf, to: &Output, pieces: &AtomicU64) -> Result<(), Ended> {
    while from.readable().await.is_ok() {
        let mut buffer = BytesMut::with_capacity(MAX_DATA);
        match from.try_read_buf(&mut buffer) {
            Ok(1..) => to.write(buffer.freeze()).await?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Ok(0) | Err(_) => break,
        }
        pieces.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Passes the stream's data and its end on to the TCP connection. If that accepts no more, further data is discarded.
pub async fn receive(mut from: Input, mut to: OwnedWriteHalf) {
    while let Some(data) = from.read().await {
        if to.write_all(&data).await.is_err() {
            return;
        }
    }
    // A closed connection cannot be shut down, which does no harm.
    let _ = to.shutdown().await;
}
