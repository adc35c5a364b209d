//! The sending half of a WebSocket that carries channels.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::SinkExt as _;
use futures_util::stream::SplitSink;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use limpet_wire::idle::Idle;

/// How often a silent client is pinged, to detect that it has gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Sends queued items as the messages that `encode` makes, with a ping every [`PING_INTERVAL`], until the queue is
/// closed.
///
/// # Errors
///
/// The client has disconnected.
pub(crate) async fn send_queued<T>(
    sink: &mut SplitSink<WebSocket, Message>,
    queue: &mut mpsc::Receiver<T>,
    encode: impl Fn(T) -> Message,
    idle: &Idle,
) -> Result<(), axum::Error> {
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            item = queue.recv() => item.map(&encode),
            _ = ping.tick() => Some(Message::Ping(Bytes::new())),
        };
        let Some(message) = message else { return Ok(()) };
        let is_ping = matches!(message, Message::Ping(_));
        sink.send(message).await?;
        if !is_ping {
            idle.reset();
        }
    }
}
