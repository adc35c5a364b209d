//! Serves a command over SPDY, as apiservers before 1.36 request it from nodes: with a stream for the status, one per
//! stream of the process and one for the sizes of a terminal.

use std::time::Duration;

use futures_util::{Stream as Messages, StreamExt as _, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::protocol::Version;
use super::session::{self, CLOSE_TIMEOUT, OUTPUT_QUEUE_LEN, Session};
use super::streams::{Incoming, Outgoing};
use limpet_wire::command::{Channel, Streams, parse_size};
use limpet_wire::spdy::connection::{Handle, Input, Output, Role, Stream, connection};
use limpet_wire::spdy::frame::Status;

/// The deadline for a client to open its streams, as in kubelet.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);
/// The header that names a stream's purpose.
const STREAM_TYPE: &str = "streamtype";
/// The longest message with a terminal's size, in bytes.
const MAX_SIZE: usize = 256;

pub(super) async fn serve(io: impl AsyncRead + AsyncWrite, session: Session) {
    let (mut streams, driver) = connection(io, Role::Server, session.idle);
    let mut driver = std::pin::pin!(driver);
    let work = async {
        if let Ok(Some(attached)) = timeout(STREAMS_TIMEOUT, Attached::accept(&mut streams, &session)).await {
            let (messages, queue) = mpsc::channel(OUTPUT_QUEUE_LEN);
            let (client, outputs) = attached.split(session.version).await;
            let session = session::serve(client, messages, write(outputs, queue), session);
            tokio::select! {
                () = session => {}
                () = refuse(&mut streams) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = &mut driver => return,
    }
    // Does not wait longer for a client that reads nothing.
    let _ = timeout(CLOSE_TIMEOUT, async { tokio::join!(streams.close(), driver) }).await;
}

/// Refuses all further streams, without end.
async fn refuse(streams: &mut Handle) {
    while let Some(stream) = streams.accept().await {
        stream.output.reset(Status::Refused).await;
    }
    // The connection has ended, which the driver reports.
    std::future::pending().await
}

/// The streams that the client has opened.
#[derive(Default)]
struct Attached(Vec<(Channel, Stream)>);

impl Attached {
    /// Accepts the requested streams; `None` if the client has disconnected.
    async fn accept(streams: &mut Handle, session: &Session) -> Option<Self> {
        let mut missing = requested_streams(session.streams, session.version);
        let mut attached = Self::default();
        while !missing.is_empty() {
            let stream = streams.accept().await?;
            let kind = stream.headers.get(STREAM_TYPE).unwrap_or_default();
            match missing.iter().position(|(name, _)| *name == kind) {
                Some(index) => attached.0.push((missing.swap_remove(index).1, stream)),
                None => stream.output.reset(Status::Refused).await,
            }
        }
        Some(attached)
    }

    /// The client's messages, and its streams for output.
    async fn split(self, version: Version) -> (impl Messages<Item = Incoming> + Unpin, Vec<(Channel, Output)>) {
        let (mut stdin, mut sizes, mut outputs) = (None, None, Vec::new());
        for (channel, stream) in self.0 {
            match channel {
                Channel::Stdin => stdin = Some(stream.input),
                Channel::Resize => sizes = Some(stream.input),
                _ => {}
            }
            // The first version closes both at once, so no error is reported; its clients expect that.
            match channel {
                Channel::Error if version == Version::V1 => {
                    stream.output.reset(Status::Cancel).await;
                    continue;
                }
                Channel::Stdin if version == Version::V1 => {
                    stream.output.finish().await;
                    continue;
                }
                _ => {}
            }
            outputs.push((channel, stream.output));
        }
        let stdin = stream::iter(stdin).flat_map(stdin_of);
        let sizes = stream::iter(sizes).flat_map(sizes_of);
        // A client may end each stream separately. The driver ends when the client has disconnected.
        (stream::select(stdin, sizes).chain(stream::pending()).boxed(), outputs)
    }
}

/// The streams that a client has to open, by name.
fn requested_streams(asked: Streams, version: Version) -> Vec<(&'static str, Channel)> {
    let all = [
        ("error", Channel::Error, true),
        ("stdin", Channel::Stdin, asked.stdin),
        ("stdout", Channel::Stdout, asked.stdout),
        ("stderr", Channel::Stderr, asked.stderr),
        ("resize", Channel::Resize, asked.tty && version >= Version::V3),
    ];
    all.into_iter().filter(|(_, _, wanted)| *wanted).map(|(name, channel, _)| (name, channel)).collect()
}

fn stdin_of(input: Input) -> impl Messages<Item = Incoming> {
    stream::unfold(Some(input), async |input| {
        let mut input = input?;
        match input.read().await {
            Some(data) => Some((Incoming::Stdin(data), Some(input))),
            None => Some((Incoming::StdinEnd, None)),
        }
    })
    .boxed()
}

/// The sizes of a terminal, one per line.
fn sizes_of(input: Input) -> impl Messages<Item = Incoming> {
    stream::unfold((input, Vec::new()), async |(mut input, mut line)| {
        loop {
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                let size = parse_size(&line[..end]);
                line.drain(..=end);
                match size {
                    Some((width, height)) => return Some((Incoming::Size(width, height), (input, line))),
                    None => continue,
                }
            }
            if line.len() > MAX_SIZE {
                line.clear();
            }
            line.extend_from_slice(&input.read().await?);
        }
    })
    .boxed()
}

/// Sends queued messages, then the ends of all streams. Returns early if the client has disconnected.
async fn write(outputs: Vec<(Channel, Output)>, mut queue: mpsc::Receiver<Outgoing>) {
    while let Some((channel, data)) = queue.recv().await {
        let output = outputs.iter().find(|(known, _)| *known == channel);
        if let Some((_, output)) = output
            && output.write(data).await.is_err()
        {
            return;
        }
    }
    for (_, output) in outputs {
        output.finish().await;
    }
}
