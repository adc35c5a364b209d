//! Passes the streams of a process on to its client, and the client's messages on to the process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use limpet_containerd::exec::ExecControl;
use limpet_wire::command::Channel;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;

/// The most output in one message, in bytes.
const MAX_OUTPUT_MESSAGE: usize = 16 << 10;

/// A client's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incoming {
    Stdin(Bytes),
    StdinEnd,
    /// The terminal's width and height in characters.
    Size(u16, u16),
}

/// A message for the client on a channel: output or, as the last message, the status.
pub(super) type Outgoing = (Channel, Bytes);

/// Passes on the client's input and terminal sizes until the client has disconnected.
pub(super) async fn receive(
    mut client: impl Stream<Item = Incoming> + Unpin,
    mut stdin: Option<Sender>,
    control: &ExecControl,
) {
    while let Some(message) = client.next().await {
        match message {
            Incoming::Stdin(data) => {
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(&data).await.is_err()
                {
                    stdin = None;
                }
            }
            Incoming::StdinEnd => {
                if stdin.take().is_some()
                    && let Err(error) = control.close_stdin().await
                {
                    tracing::debug!(%error, "cannot close the stdin of a command");
                }
            }
            Incoming::Size(width, height) => {
                if let Err(error) = control.resize(width, height).await {
                    tracing::debug!(%error, "cannot resize a terminal");
                }
            }
        }
    }
}

/// Reads one of the process's streams to its end. A stream that the client did not request is drained, because a full
/// pipe would block the process.
pub(super) async fn pump(
    mut stream: impl AsyncRead + Unpin,
    channel: Channel,
    forward: bool,
    messages: &mpsc::Sender<Outgoing>,
    activity: &Activity,
) {
    let mut buffer = vec![0; MAX_OUTPUT_MESSAGE];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        activity.begin();
        if forward {
            send(messages, channel, Bytes::copy_from_slice(&buffer[..count])).await;
        }
        activity.end();
    }
}

/// Tracks whether output is being read or waits for the client.
#[derive(Debug, Default)]
pub(super) struct Activity {
    reads: AtomicU64,
    sending: AtomicUsize,
    checked: AtomicU64,
}

impl Activity {
    fn begin(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.sending.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether output was read since the last call, or is being sent now.
    pub(super) fn since_last_check(&self) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        self.checked.swap(reads, Ordering::Relaxed) != reads || self.sending.load(Ordering::Relaxed) > 0
    }
}

pub(super) async fn send(messages: &mpsc::Sender<Outgoing>, channel: Channel, data: Bytes) {
    // The writer stops first only if the connection is lost, which ends everything.
    let _ = messages.send((channel, data)).await;
}
