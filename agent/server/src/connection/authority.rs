//! Accepts the `:authority` that Go's gRPC clients send on a Unix socket: the socket's path.
//!
//! Device plugins and exporters dial the path with a dialer of their own, and grpc-go then sends `%2Fvar%2Flib%2F…`
//! as the authority. RFC 3986 does not allow this, so h2 resets the stream (hyperium/h2#487). A Unix socket needs no
//! authority: this module replaces it with `localhost` before h2 reads it.
//!
//! Header blocks are otherwise unchanged. A value that the client has put into the dynamic table of HPACK (RFC 7541)
//! gets shorter, never longer: this side's table then drops an entry no earlier than the client's, and every index
//! still means the same.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const AUTHORITY: &[u8] = b"localhost";
/// The index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: usize = 1;
/// The length of the preface with which a client begins a connection.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const FRAME_HEAD_LEN: usize = 9;
/// The longest frame that is accepted: h2's default. A header block may not be longer either.
const MAX_FRAME: usize = 16 << 10;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A stream whose reader sees `localhost` as the authority of every request.
pub(super) struct LocalAuthority<S> {
    stream: S,
    frames: Frames,
    /// Rewritten bytes; those from `taken` on have not been read.
    ready: Vec<u8>,
    taken: usize,
}

impl<S> LocalAuthority<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), ready: Vec::new(), taken: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LocalAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let rest = &this.ready[this.taken..];
            if !rest.is_empty() {
                let count = rest.len().min(into.remaining());
                into.put_slice(&rest[..count]);
                this.taken += count;
                return Poll::Ready(Ok(()));
            }
            this.ready.clear();
            this.taken = 0;
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed HTTP/2 headers");
            this.frames.pass(read.filled(), &mut this.ready).ok_or_else(malformed)?;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LocalAuthority<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

/// The position in the client's bytes.
enum State {
    /// This many bytes pass unchanged.
    Passing(usize),
    /// The head of the next frame is being collected.
    Head,
    /// A part of a header block is being collected; this many bytes are missing.
    Block(Frame, usize),
}

/// The client's frames. All of them pass, header blocks once they are complete.
struct Frames {
    state: State,
    collected: Vec<u8>,
    /// The header block so far, and the frame that began it.
    block: Vec<u8>,
    begun: Option<Frame>,
}

impl Default for Frames {
    fn default() -> Self {
        Self { state: State::Passing(PREFACE), collected: Vec::new(), block: Vec::new(), begun: None }
    }
}

impl Frames {
    /// Takes `bytes`, and appends to `out` what h2 should read. `None` means that this is not HTTP/2.
    fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        while !bytes.is_empty() {
            let wanted = match self.state {
                State::Passing(left) | State::Block(_, left) => left,
                State::Head => FRAME_HEAD_LEN - self.collected.len(),
            };
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            bytes = later;
            let missing = wanted - now.len();
            match &mut self.state {
                State::Passing(left) => {
                    out.extend_from_slice(now);
                    *left = missing;
                }
                State::Block(_, left) => {
                    self.collected.extend_from_slice(now);
                    *left = missing;
                }
                State::Head => self.collected.extend_from_slice(now),
            }
            if missing == 0 {
                self.next(out)?;
            }
        }
        Some(())
    }

    /// Handles the frame head or the part of a header block that is now complete.
    fn next(&mut self, out: &mut Vec<u8>) -> Option<()> {
        match self.state {
            State::Passing(_) => self.state = State::Head,
            State::Block(frame, _) => {
                self.state = State::Head;
                let part = std::mem::take(&mut self.collected);
                self.add(frame, &part, out)?;
            }
            State::Head => {
                let head = std::mem::take(&mut self.collected);
                let [a, b, c, kind, flags, stream @ ..] = <[u8; FRAME_HEAD_LEN]>::try_from(&*head).ok()?;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                let frame = Frame { kind, flags, stream };
                match kind {
                    HEADERS | CONTINUATION if length > MAX_FRAME => return None,
                    HEADERS | CONTINUATION if length == 0 => self.add(frame, &[], out)?,
                    HEADERS | CONTINUATION => self.state = State::Block(frame, length),
                    _ => {
                        out.extend_from_slice(&head);
                        self.state = if length == 0 { State::Head } else { State::Passing(length) };
                    }
                }
            }
        }
        Some(())
    }

    /// Adds a frame's part of a header block. The whole block is written as one frame.
    fn add(&mut self, frame: Frame, payload: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let begun = match (frame.kind, self.begun.take()) {
            (HEADERS, None) => frame,
            (CONTINUATION, Some(begun)) if begun.stream == frame.stream => begun,
            _ => return None,
        };
        self.block.extend_from_slice(if frame.kind == HEADERS { fragment(frame.flags, payload)? } else { payload });
        if self.block.len() > MAX_FRAME {
            return None;
        }
        if frame.flags & END_HEADERS == 0 {
            self.begun = Some(begun);
            return Some(());
        }
        let block = rewritten(&std::mem::take(&mut self.block))?;
        out.extend_from_slice(&u32::try_from(block.len()).ok()?.to_be_bytes()[1..]);
        out.extend_from_slice(&[HEADERS, begun.flags & END_STREAM | END_HEADERS]);
        out.extend_from_slice(&begun.stream);
        out.extend_from_slice(&block);
        Some(())
    }
}

/// A HEADERS frame's part of the block, without padding and priority, which h2 does not use.
fn fragment(flags: u8, mut payload: &[u8]) -> Option<&[u8]> {
    if flags & PADDED != 0 {
        let (padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(usize::from(*padding))?)?;
    }
    if flags & PRIORITY != 0 { payload.get(5..) } else { Some(payload) }
}

/// The header block with `localhost` as its authority.
fn rewritten(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(first) = rest.first() {
        let field = rest;
        // RFC 7541, section 6: indexed, literal with indexing, size of the table, literals without indexing.
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index;
        (index, rest) = integer(rest, prefix)?;
        if is_literal {
            if index == 0 {
                (_, rest) = string(rest)?;
            }
            let name = &field[..field.len() - rest.len()];
            let value;
            (value, rest) = string(rest)?;
            if index == AUTHORITY_INDEX && value.len() >= AUTHORITY.len() {
                out.extend_from_slice(name);
                // A length this short fits the first byte. The Huffman bit stays 0.
                out.push(AUTHORITY.len() as u8);
                out.extend_from_slice(AUTHORITY);
                continue;
            }
        }
        out.extend_from_slice(&field[..field.len() - rest.len()]);
    }
    Some(out)
}

/// Decodes an integer that begins in the lowest `prefix` bits of the first byte; returns it and the rest.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some((value, rest));
    }
    for shift in [0, 7, 14] {
        let next;
        (next, rest) = rest.split_first()?;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// Takes an encoded string, after its length.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = integer(bytes, 7)?;
    rest.split_at_checked(length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// `POST`, then a literal authority with indexing, then a literal of another name.
    fn block(authority: &[u8]) -> Vec<u8> {
        let field = |name: &[u8], value: &[u8]| [name, &[u8::try_from(value.len()).unwrap()], value].concat();
        [vec![0x83], field(&[0x41], authority), field(b"\x00\x01a", b"b"), vec![0xbe]].concat()
    }

    fn passed(parts: &[&[u8]]) -> Option<Vec<u8>> {
        let (mut frames, mut out) = (Frames { state: State::Head, ..Frames::default() }, Vec::new());
        parts.iter().try_for_each(|part| frames.pass(part, &mut out))?;
        Some(out)
    }

    #[test]
    fn a_path_is_no_authority_and_all_else_passes() {
        let settings = frame(4, 0, 0, &[0; 6]);
        let data = frame(0, 1, 1, b"data");
        let path = b"%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock";
        let sent = [settings.clone(), frame(HEADERS, END_HEADERS, 1, &block(path)), data.clone()].concat();
        let expected = [settings, frame(HEADERS, END_HEADERS, 1, &block(AUTHORITY)), data].concat();
        assert_eq!(passed(&[&sent]).unwrap(), expected);
        let bytes: Vec<&[u8]> = sent.chunks(1).collect();
        assert_eq!(passed(&bytes).unwrap(), expected);
        // A shorter value would become longer, and take more of the table than the client accounts for.
        let short = frame(HEADERS, END_HEADERS, 1, &block(b"a/b"));
        assert_eq!(passed(&[&short]).unwrap(), short);
    }

    #[test]
    fn a_block_in_several_frames_goes_out_as_one() {
        let whole = block(b"/run/limpet/cri.sock");
        let (first, second) = whole.split_at(7);
        let padded = [&[2][..], &[0; 5], first, &[0; 2]].concat();
        let sent = [
            frame(HEADERS, END_STREAM | PADDED | PRIORITY, 3, &padded),
            frame(CONTINUATION, 0, 3, &[]),
            frame(CONTINUATION, END_HEADERS, 3, second),
        ]
        .concat();
        assert_eq!(passed(&[&sent]).unwrap(), frame(HEADERS, END_STREAM | END_HEADERS, 3, &block(AUTHORITY)));
    }

    #[test]
    fn what_is_malformed_ends_the_connection() {
        let cases = [
            frame(CONTINUATION, END_HEADERS, 1, &[0x83]),
            frame(HEADERS, END_HEADERS, 1, &[0x41, 9, b'a']),
            frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0xff]),
            frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x83]),
            frame(HEADERS, END_HEADERS, 1, &vec![0x83; MAX_FRAME + 1]),
            [frame(HEADERS, 0, 1, &[0x83]), frame(HEADERS, END_HEADERS, 3, &[0x83])].concat(),
        ];
        for case in cases {
            assert_eq!(passed(&[&case]), None, "{:02x?}", &case[..case.len().min(20)]);
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let payload: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            let (kind, flags) = (if random.bool() { HEADERS } else { CONTINUATION }, random.u8(..));
            passed(&[&frame(kind, flags, 1, &payload), &frame(CONTINUATION, END_HEADERS, 1, &payload)]);
        }
    }
}
