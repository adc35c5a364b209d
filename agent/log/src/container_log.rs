//! The log of one container: reads its output streams, splits them into CRI lines and appends those to the log's
//! file.
//!
//! The owner of the event loop calls it: the logger process with one log, or limpet's shim with those of its pod. All
//! logs of a process share buffers, so a container that writes nothing costs none.

mod file;
mod followers;
pub(crate) mod stamp;

use std::io::BufRead as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::file::LogFile;
use self::followers::Followers;
use self::stamp::Stamp;
use crate::config::WriterConfig;

/// The longest text of a log line in bytes; longer lines are written in parts (CRI).
pub(crate) const MAX_PART: usize = 16 << 10;
/// The size of the input buffer: one part and further bytes.
const INPUT_BUFFER: usize = MAX_PART + (4 << 10);
/// The size of the buffer for log lines that are written at once.
const OUTPUT_BUFFER: usize = 32 << 10;
/// `2026-01-02T03:04:05.678901234Z stdout F `.
const HEADER_LENGTH: usize = stamp::STAMP_LENGTH + 10;
/// How often reporting lost lines is retried while the container is silent, because no event reports that a disk has
/// space again.
const LOSS_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How long an unterminated line is buffered before it is written as a partial line: less than readers wait for the
/// last line of an exited container whose pipes the shim holds open.
const PARTIAL_LINE_TIMEOUT: Duration = Duration::from_millis(100);

/// The buffers that all logs of a process share.
#[derive(Debug)]
pub struct Buffers {
    input: Vec<u8>,
    lines: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { input: vec![0; INPUT_BUFFER], lines: Vec::with_capacity(OUTPUT_BUFFER) }
    }
}

/// One container's log and its streams: 0 is stdout, 1 is stderr.
#[derive(Debug)]
pub struct ContainerLog {
    file: LogFile,
    streams: [Stream; 2],
    followers: Followers,
}

impl ContainerLog {
    /// Opens the log's file and the socket for attached clients. The streams must be non-blocking; one may be absent.
    /// Opening a file that fails is retried at the next write.
    pub fn open(config: WriterConfig, streams: [Option<OwnedFd>; 2]) -> Self {
        let followers = config.terminal.as_deref().map(Followers::listen).unwrap_or_default();
        let [stdout, stderr] = streams;
        Self {
            file: LogFile::open(config.path, config.rotation),
            streams: [Stream::new(stdout, b"stdout"), Stream::new(stderr, b"stderr")],
            followers,
        }
    }

    /// Whether another process had the log's file locked when it was opened.
    pub fn is_contended(&self) -> bool {
        self.file.is_contended()
    }

    /// The stream, while it is open.
    pub fn stream(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.streams.get(index)?.source.as_ref().map(OwnedFd::as_fd)
    }

    /// Whether a stream is open.
    pub fn is_open(&self) -> bool {
        self.streams.iter().any(|stream| stream.source.is_some())
    }

    /// Sets a stream, which must be non-blocking.
    pub fn set_stream(&mut self, index: usize, source: OwnedFd) {
        if let Some(stream) = self.streams.get_mut(index) {
            stream.source = Some(source);
        }
    }

    /// The socket to poll for clients, besides the streams.
    pub fn listener(&self) -> Option<&UnixListener> {
        self.followers.listener()
    }

    /// Accepts a client.
    pub fn accept(&mut self) {
        self.followers.accept();
    }

    /// A client that has not taken its output. Until it has, or is dropped, the streams must not be read: wait until it can
    /// be written to, and call [`ContainerLog::serve_clients`].
    pub fn blocked_client(&self) -> Option<BorrowedFd<'_>> {
        self.followers.blocked().map(|client| client.as_fd())
    }

    /// Sends clients what they take now, and drops those that take nothing for too long.
    pub fn serve_clients(&mut self) {
        self.followers.send_unsent(Instant::now());
    }

    /// Reads once from a stream, and writes its complete lines. Returns false if the stream has ended; then call
    /// [`ContainerLog::end`].
    pub fn read(&mut self, index: usize, buffers: &mut Buffers) -> bool {
        let Some(stream) = self.streams.get_mut(index) else { return false };
        let Some(source) = &stream.source else { return false };
        let start = stream.unended.len();
        // There is room, because `cut` leaves at most one part.
        buffers.input[..start].copy_from_slice(&stream.unended);
        let count = match rustix::io::read(source, &mut buffers.input[start..]) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            // The other end of the terminal is closed.
            Err(_) => return false,
        };
        self.followers.pass_on(&buffers.input[start..start + count]);
        let Buffers { input, lines } = buffers;
        let mut batch = Batch { file: &mut self.file, lines, stamp: Stamp::now() };
        stream.cut(&input[..start + count], false, &mut batch);
        batch.flush();
        true
    }

    /// Closes a stream that has ended, and writes the rest of its last line. Returns its descriptor.
    pub fn end(&mut self, index: usize, buffers: &mut Buffers) -> Option<OwnedFd> {
        let stream = self.streams.get_mut(index)?;
        let rest = std::mem::take(&mut stream.unended);
        let mut batch = Batch { file: &mut self.file, lines: &mut buffers.lines, stamp: Stamp::now() };
        stream.cut(&rest, true, &mut batch);
        batch.flush();
        stream.source.take()
    }

    /// How long until [`ContainerLog::catch_up`] is due; `None` if nothing is pending.
    pub fn timeout(&self) -> Option<Duration> {
        let has_losses = self.file.has_losses();
        if !has_losses && self.followers.blocked().is_none() && self.streams.iter().all(|stream| stream.pending() == 0)
        {
            return None;
        }
        let now = Instant::now();
        let partial = self.streams.iter().filter_map(|stream| stream.timeout(now));
        let losses = has_losses.then_some(LOSS_REPORT_INTERVAL);
        partial.chain(losses).chain(self.followers.timeout(now)).min()
    }

    /// Writes the beginnings of lines that are unterminated for some time, reports lost lines, and serves clients.
    pub fn catch_up(&mut self, buffers: &mut Buffers) {
        let now = Instant::now();
        self.followers.send_unsent(now);
        let mut batch = Batch { file: &mut self.file, lines: &mut buffers.lines, stamp: Stamp::now() };
        let streams = self.streams.iter_mut();
        let due = streams.filter(|stream| stream.timeout(now).is_some_and(|timeout| timeout.is_zero()));
        due.for_each(|stream| stream.write_unended(&mut batch));
        batch.flush();
    }
}

/// One of the container's output streams, with its incomplete line.
#[derive(Debug)]
struct Stream {
    /// `None` once it is closed.
    source: Option<OwnedFd>,
    name: &'static [u8; 6],
    unended: Vec<u8>,
    /// When the incomplete line began.
    unended_since: Option<Instant>,
}

impl Stream {
    fn new(source: Option<OwnedFd>, name: &'static [u8; 6]) -> Self {
        Self { source, name, unended: Vec::new(), unended_since: None }
    }

    /// Passes on the complete lines of `text`, and parts of a line that is too long; at the end of the stream also
    /// the rest.
    fn cut(&mut self, mut text: &[u8], ended: bool, batch: &mut Batch<'_>) {
        let whole = text.len();
        while !text.is_empty() {
            // The standard library's fastest byte search; reading from a slice cannot fail.
            let mut rest = text;
            let length = rest.skip_until(b'\n').unwrap_or(text.len());
            if let Some(line) = text[..length].strip_suffix(b"\n") {
                // Like containerd, drops the carriage return that a terminal writes before each newline.
                let mut line = line.strip_suffix(b"\r").unwrap_or(line);
                while line.len() > MAX_PART {
                    batch.push(self.name, b'P', &line[..MAX_PART]);
                    line = &line[MAX_PART..];
                }
                batch.push(self.name, b'F', line);
                text = &text[length..];
            } else if text.len() > MAX_PART {
                batch.push(self.name, b'P', &text[..MAX_PART]);
                text = &text[MAX_PART..];
            } else if ended {
                // As in containerd, a line without an end is a part.
                batch.push(self.name, b'P', text);
                text = &[];
            } else {
                break;
            }
        }
        if text.is_empty() {
            // Most streams write complete lines, so the buffer is freed.
            (self.unended, self.unended_since) = (Vec::new(), None);
        } else {
            if text.len() < whole || self.unended_since.is_none() {
                self.unended_since = Some(Instant::now());
            }
            self.unended.clear();
            self.unended.extend_from_slice(text);
        }
    }

    /// The bytes of an unterminated line that may be passed on, without a carriage return that may belong to its end.
    fn pending(&self) -> usize {
        self.unended.len() - usize::from(self.unended.ends_with(b"\r"))
    }

    /// How long until the beginning of an unterminated line is passed on.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let since = self.unended_since.filter(|_| self.pending() > 0)?;
        Some(PARTIAL_LINE_TIMEOUT.saturating_sub(now.saturating_duration_since(since)))
    }

    /// Passes on the beginning of an unterminated line.
    fn write_unended(&mut self, batch: &mut Batch<'_>) {
        let length = self.pending();
        if length > 0 {
            batch.push(self.name, b'P', &self.unended[..length]);
            self.unended.drain(..length);
            self.unended_since = None;
        }
    }
}

/// Log lines to be written to a file at once.
struct Batch<'a> {
    file: &'a mut LogFile,
    lines: &'a mut Vec<u8>,
    stamp: Stamp,
}

impl Batch<'_> {
    fn push(&mut self, stream: &[u8; 6], tag: u8, text: &[u8]) {
        if self.lines.len() + HEADER_LENGTH + text.len() + 1 > OUTPUT_BUFFER {
            self.flush();
        }
        self.lines.extend_from_slice(self.stamp.text());
        self.lines.push(b' ');
        self.lines.extend_from_slice(stream);
        self.lines.extend_from_slice(&[b' ', tag, b' ']);
        self.lines.extend_from_slice(text);
        self.lines.push(b'\n');
        self.stamp.advance();
        if self.lines.len() as u64 >= self.file.room() {
            self.flush();
        }
    }

    /// Writes the collected lines; also called without any, to report lost lines.
    fn flush(&mut self) {
        if !self.lines.is_empty() || self.file.has_losses() {
            self.file.append(self.lines, &self.stamp);
            self.lines.clear();
        }
    }
}
