//! One SPDY connection in either role, and its streams.
//!
//! In: the peer's bytes; [`Handle::open`]. Out: [`Stream`]s that the peer opens. The driver that [`connection`]
//! returns reads and writes; when it ends or is dropped, every stream ends. Received data that is not read yet is
//! bounded for the whole connection: at the limit the connection is not read, so a slow reader delays its peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::frame::{Decoder, Encoder, Frame, MAX_DATA, Status};
use super::headers::Headers;
use crate::idle::{Idle, IdleTimeout};

/// The most streams that are open at once: enough for 128 forwarded connections.
pub const MAX_STREAMS: usize = 256;
/// How often a peer is pinged, so that a vanished peer is noticed while there is no other traffic.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The most received and unread bytes of a connection.
const MAX_UNREAD: usize = 256 << 10;
/// The least that a piece of data counts, because it takes memory besides its bytes.
const MIN_PIECE: usize = 512;
/// The most unread pieces of a stream, its end included: all that the connection may have.
const MAX_UNREAD_PIECES: usize = MAX_UNREAD / MIN_PIECE + 1;
/// The most frames that wait for a slow peer; beyond it their senders wait.
const FRAME_QUEUE_LEN: usize = 8;
/// The most streams that wait to be accepted.
const STREAM_QUEUE_LEN: usize = 8;
/// The size of reads and writes in bytes.
const BUFFER_SIZE: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts streams.
    Server,
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended")]
pub struct Ended;

#[derive(Debug)]
pub struct Handle {
    accepted: mpsc::Receiver<Stream>,
    opens: mpsc::Sender<Open>,
    frames: mpsc::Sender<Frame>,
}

#[derive(Debug)]
pub struct Stream {
    pub id: u32,
    pub headers: Headers,
    /// The peer's data. If this is dropped, further data is discarded.
    pub input: Input,
    pub output: Output,
    /// Cancelled when the peer resets the stream.
    pub reset: CancellationToken,
}

/// The data that the peer sends on a stream.
#[derive(Debug)]
pub struct Input(mpsc::Receiver<Piece>);

/// The data that is sent on a stream. Dropping it leaves the stream open: see [`Output::finish`].
#[derive(Debug)]
pub struct Output {
    id: u32,
    frames: mpsc::Sender<Frame>,
}

#[derive(Debug)]
enum Piece {
    Data(Bytes, #[allow(dead_code, reason = "gives its part of the connection's bound back")] OwnedSemaphorePermit),
    End,
}

/// A request to open a stream, in the client role.
#[derive(Debug)]
struct Open {
    headers: Headers,
    to: oneshot::Sender<Stream>,
}

impl Handle {
    /// The next stream that the peer opens; `None` if the connection has ended. Cancel safe.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.accepted.recv().await
    }

    /// Opens a stream, in the client role only. Does not wait for the peer to accept it.
    ///
    /// # Errors
    ///
    /// The connection has ended, or has too many streams.
    pub async fn open(&self, headers: Headers) -> Result<Stream, Ended> {
        let (to, opened) = oneshot::channel();
        self.opens.send(Open { headers, to }).await.map_err(|_| Ended)?;
        opened.await.map_err(|_| Ended)
    }

    /// Ends the connection once all earlier data of its streams has been sent: the driver ends when the peer has
    /// received it and closes its side.
    pub async fn close(&self) {
        // Without a driver the connection has ended.
        let _ = self.frames.send(Frame::GoAway { last: 0 }).await;
    }
}

impl Input {
    /// The next data; `None` if the peer has ended or reset the stream, or the connection has ended. Cancel safe.
    pub async fn read(&mut self) -> Option<Bytes> {
        match self.0.recv().await {
            Some(Piece::Data(data, _)) => Some(data),
            Some(Piece::End) | None => {
                self.0.close();
                None
            }
        }
    }
}

impl Output {
    /// Sends data. Waits while the peer does not read.
    ///
    /// # Errors
    ///
    /// The connection has ended.
    pub async fn write(&self, mut data: Bytes) -> Result<(), Ended> {
        while !data.is_empty() {
            let data = data.split_to(data.len().min(MAX_DATA));
            self.send(Frame::Data { id: self.id, data, fin: false }).await?;
        }
        Ok(())
    }

    /// Sends the end of the stream.
    pub async fn finish(&self) {
        // Fails only if the connection has ended.
        let _ = self.send(Frame::Data { id: self.id, data: Bytes::new(), fin: true }).await;
    }

    /// Ends the stream in both directions.
    pub async fn reset(&self, status: Status) {
        // Fails only if the connection has ended.
        let _ = self.send(Frame::Reset { id: self.id, status: status as u32 }).await;
    }

    async fn send(&self, frame: Frame) -> Result<(), Ended> {
        self.frames.send(frame).await.map_err(|_| Ended)
    }
}

/// A connection over `io`, and the driver that has to be polled. The driver ends when the peer disconnects or
/// violates the protocol, after [`Handle::close`], and after `idle` without any traffic except pings.
pub fn connection(
    io: impl AsyncRead + AsyncWrite,
    role: Role,
    idle: IdleTimeout,
) -> (Handle, impl Future<Output = ()>) {
    let (frames, queue) = mpsc::channel(FRAME_QUEUE_LEN);
    let (accept, accepted) = mpsc::channel(STREAM_QUEUE_LEN);
    let (opens, open) = mpsc::channel(1);
    let handle = Handle { accepted, opens, frames: frames.clone() };
    let pings = frames.clone();
    let streams =
        Streams { role, frames, accept, open: HashMap::new(), last: 0, unread: Arc::new(Semaphore::new(MAX_UNREAD)) };
    let driver = async move {
        let (reader, writer) = tokio::io::split(io);
        let idle = Idle::new(idle);
        tokio::select! {
            () = read(reader, streams, open, &idle) => {}
            () = write(writer, queue, &idle) => {}
            () = ping(&pings, role) => {}
            () = idle.expired() => {}
        }
    };
    (handle, driver)
}

/// Sends pings forever.
async fn ping(frames: &mpsc::Sender<Frame>, role: Role) {
    let mut id = if role == Role::Server { 2 } else { 1 };
    loop {
        sleep(PING_INTERVAL).await;
        // The writer ends only with the connection.
        let _ = frames.send(Frame::Ping(id)).await;
        id = id.wrapping_add(2);
    }
}

/// Reads frames and opens streams until the peer disconnects or violates the protocol.
async fn read(mut reader: impl AsyncRead + Unpin, mut streams: Streams, mut opens: mpsc::Receiver<Open>, idle: &Idle) {
    let mut decoder = Decoder::default();
    let mut input = BytesMut::new();
    loop {
        input.reserve(BUFFER_SIZE);
        let count = tokio::select! {
            count = reader.read_buf(&mut input) => count,
            Some(open) = opens.recv() => {
                streams.open(open).await;
                continue;
            }
        };
        if !count.is_ok_and(|count| count > 0) {
            return;
        }
        loop {
            match decoder.next(&mut input) {
                Ok(Some(frame)) => {
                    if frame.is_use() {
                        idle.reset();
                    }
                    streams.receive(frame).await;
                }
                Ok(None) => break,
                Err(error) => return tracing::debug!(%error, "a SPDY connection ended"),
            }
        }
    }
}

/// Writes frames until the peer has disconnected. Writes none after GOAWAY.
async fn write(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Frame>, idle: &Idle) {
    let (mut encoder, mut output) = (Encoder::default(), BytesMut::new());
    while let Some(frame) = queue.recv().await {
        let mut next = Some(frame);
        let (mut last, mut used) = (false, false);
        while let Some(frame) = next {
            used |= frame.is_use();
            last |= matches!(frame, Frame::GoAway { .. });
            encoder.write(&frame, &mut output);
            next = if output.len() < BUFFER_SIZE && !last { queue.try_recv().ok() } else { None };
        }
        if writer.write_all(&output).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        if used {
            idle.reset();
        }
        output.clear();
        if last {
            // Fails only if the peer has disconnected.
            let _ = writer.shutdown().await;
            // Closing now would discard what the peer has not received yet. The reader ends when the peer closes its
            // side.
            return std::future::pending().await;
        }
    }
}

/// The open streams, owned by the reader.
struct Streams {
    role: Role,
    frames: mpsc::Sender<Frame>,
    accept: mpsc::Sender<Stream>,
    open: HashMap<u32, Entry>,
    /// The id of the stream that was opened last.
    last: u32,
    unread: Arc<Semaphore>,
}

struct Entry {
    pieces: mpsc::Sender<Piece>,
    reset: CancellationToken,
    /// Whether the peer has sent GOAWAY.
    ended: bool,
}

impl Streams {
    async fn receive(&mut self, frame: Frame) {
        match frame {
            Frame::Open { id, headers, fin } => self.opened(id, headers, fin).await,
            Frame::Data { id, data, fin } => {
                self.data(id, data).await;
                self.end(id, fin).await;
            }
            Frame::Reply { id, fin, .. } | Frame::Headers { id, fin, .. } => self.end(id, fin).await,
            Frame::Reset { id, .. } => {
                if let Some(entry) = self.open.remove(&id) {
                    entry.reset.cancel();
                }
            }
            // A peer's own pings have its parity: odd ids are a client's.
            Frame::Ping(id) if (id % 2 == 1) == (self.role == Role::Server) => self.send(Frame::Ping(id)).await,
            Frame::Ping(_) | Frame::GoAway { .. } | Frame::Other => {}
        }
    }

    /// Accepts a stream that the peer opens.
    async fn opened(&mut self, id: u32, headers: Headers, fin: bool) {
        let refusal = if self.role != Role::Server || id.is_multiple_of(2) || id <= self.last {
            Some(Status::Protocol)
        } else {
            self.last = id;
            self.is_full().then_some(Status::Refused)
        };
        if let Some(status) = refusal {
            return self.send(Frame::Reset { id, status: status as u32 }).await;
        }
        let stream = self.insert(id, headers);
        self.send(Frame::Reply { id, headers: Headers::default(), fin: false }).await;
        self.end(id, fin).await;
        if self.accept.send(stream).await.is_err() {
            self.send(Frame::Reset { id, status: Status::Refused as u32 }).await;
        }
    }

    /// Opens a stream to the peer. Beyond the limit, or in the server role, it opens none.
    async fn open(&mut self, open: Open) {
        if self.role != Role::Client || self.is_full() {
            return;
        }
        let id = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        let stream = self.insert(id, open.headers.clone());
        self.send(Frame::Open { id, headers: open.headers, fin: false }).await;
        // If the caller is gone, the stream is dropped with its data.
        let _ = open.to.send(stream);
    }

    /// Whether no further stream may be opened. Removes unused streams first.
    fn is_full(&mut self) -> bool {
        self.open.retain(|_, entry| !entry.pieces.is_closed());
        self.open.len() >= MAX_STREAMS
    }

    fn insert(&mut self, id: u32, headers: Headers) -> Stream {
        let (pieces, input) = mpsc::channel(MAX_UNREAD_PIECES);
        let reset = CancellationToken::new();
        self.open.insert(id, Entry { pieces, reset: reset.clone(), ended: false });
        Stream { id, headers, input: Input(input), output: Output { id, frames: self.frames.clone() }, reset }
    }

    /// Passes data to its stream. Waits while too much is unread.
    async fn data(&mut self, id: u32, data: Bytes) {
        let Some(entry) = self.open.get(&id).filter(|entry| !entry.ended && !data.is_empty()) else { return };
        // No piece is longer than `MAX_DATA`, so the length fits.
        let size = data.len().max(MIN_PIECE) as u32;
        let permit = tokio::select! {
            permit = Arc::clone(&self.unread).acquire_many_owned(size) => permit,
            () = entry.pieces.closed() => return,
        };
        if let Ok(permit) = permit {
            // Data for a stream that is no longer read is lost.
            let _ = entry.pieces.send(Piece::Data(data, permit)).await;
        }
    }

    async fn end(&mut self, id: u32, fin: bool) {
        if let Some(entry) = self.open.get_mut(&id).filter(|entry| fin && !entry.ended) {
            entry.ended = true;
            // As above.
            let _ = entry.pieces.send(Piece::End).await;
        }
    }

    async fn send(&self, frame: Frame) {
        // The writer ends only with the connection.
        let _ = self.frames.send(frame).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
