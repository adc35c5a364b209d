//! Encodes and decodes frames. Pure, and bounded whatever the peer sends.
//!
//! A control frame has a control bit, a version, a type, flags and a length; a data frame has its stream's id, flags
//! and a length. Data is passed on as it arrives, so the length that a peer chooses costs no memory.

use bytes::{Buf, Bytes, BytesMut};

use super::headers::{Deflater, HeaderError, Headers, Inflater};

/// The longest control frame in bytes.
pub const MAX_CONTROL: usize = 16 << 10;
/// The most bytes of data that are passed on, and sent, at once.
pub const MAX_DATA: usize = 16 << 10;
/// The length of a frame's head in bytes.
const HEAD_LEN: usize = 8;
const VERSION: u16 = 3;
const CONTROL: u8 = 0x80;
/// The flag of the last frame of a stream.
const FIN: u8 = 1;

/// Why a stream is reset: the status in `RST_STREAM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The stream's id is invalid.
    Protocol = 1,
    /// The stream is not accepted.
    Refused = 3,
    /// The stream is no longer wanted.
    Cancel = 5,
}

/// A frame, or a piece of a data frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `SYN_STREAM`: a new stream.
    Open {
        id: u32,
        headers: Headers,
        /// Whether the sender sends no data on it.
        fin: bool,
    },
    /// `SYN_REPLY`: a stream was accepted.
    Reply {
        id: u32,
        headers: Headers,
        /// Whether the sender sends no data on it.
        fin: bool,
    },
    /// `RST_STREAM`: a stream has ended, in both directions.
    Reset {
        id: u32,
        /// A [`Status`], or another number.
        status: u32,
    },
    /// `PING`: the receiver returns it unless it was the sender.
    Ping(u32),
    /// `GOAWAY`: the sender accepts no more streams.
    GoAway {
        /// The last stream that was accepted.
        last: u32,
    },
    /// `HEADERS`: more headers of a stream.
    Headers {
        id: u32,
        headers: Headers,
        /// Whether the sender sends no more data on it.
        fin: bool,
    },
    /// `SETTINGS`, `WINDOW_UPDATE` or an unknown type: ignored.
    Other,
    Data {
        id: u32,
        /// At most [`MAX_DATA`] bytes.
        data: Bytes,
        fin: bool,
    },
}

impl Frame {
    /// Whether the frame counts as use of the connection, because it concerns a stream.
    pub fn is_use(&self) -> bool {
        !matches!(self, Self::Ping(_) | Self::GoAway { .. } | Self::Other)
    }
}

/// Why a connection cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer uses another version, or no SPDY.
    #[error("not SPDY/3")]
    Version,
    /// A control frame is longer than [`MAX_CONTROL`].
    #[error("a control frame of {0} bytes")]
    TooLarge(usize),
    /// A frame's length does not fit its type, or its stream id is 0.
    #[error("a malformed frame of type {0}")]
    Malformed(u16),
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

/// Reads the frames of one direction of a connection.
#[derive(Debug, Default)]
pub struct Decoder {
    inflater: Inflater,
    /// The data frame whose rest has not arrived.
    data: Option<PartialData>,
}

#[derive(Debug)]
struct PartialData {
    id: u32,
    left: usize,
    fin: bool,
}

impl Decoder {
    /// Takes the next frame from `input`; `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// After an error the connection cannot be read any further.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if let Some(partial) = self.data.take() {
            return Ok(self.piece(partial, input));
        }
        let Some([first, second, third, fourth, flags, length @ ..]) = input.first_chunk::<HEAD_LEN>().copied() else {
            return Ok(None);
        };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if first & CONTROL == 0 {
            let id = u32::from_be_bytes([first, second, third, fourth]);
            if id == 0 {
                return Err(FrameError::Malformed(0));
            }
            input.advance(HEAD_LEN);
            return Ok(self.piece(PartialData { id, left: length, fin: flags & FIN != 0 }, input));
        }
        if u16::from_be_bytes([first & !CONTROL, second]) != VERSION {
            return Err(FrameError::Version);
        }
        if length > MAX_CONTROL {
            return Err(FrameError::TooLarge(length));
        }
        if input.len() < HEAD_LEN + length {
            return Ok(None);
        }
        input.advance(HEAD_LEN);
        let content = input.split_to(length);
        self.control(u16::from_be_bytes([third, fourth]), flags, &content).map(Some)
    }

    /// The part of a data frame that has arrived; `None` if nothing has.
    fn piece(&mut self, partial: PartialData, input: &mut BytesMut) -> Option<Frame> {
        let PartialData { id, left, fin } = partial;
        let length = left.min(input.len()).min(MAX_DATA);
        if length == 0 && left > 0 {
            self.data = Some(partial);
            return None;
        }
        // Copied, so that a piece that waits for its reader holds no other memory.
        let data = Bytes::copy_from_slice(&input[..length]);
        input.advance(length);
        if length < left {
            self.data = Some(PartialData { id, left: left - length, fin });
            return Some(Frame::Data { id, data, fin: false });
        }
        Some(Frame::Data { id, data, fin })
    }

    fn control(&mut self, kind: u16, flags: u8, content: &[u8]) -> Result<Frame, FrameError> {
        let malformed = || FrameError::Malformed(kind);
        let fin = flags & FIN != 0;
        // The id of a stream or ping, and the rest; 0 is invalid.
        let numbered = || match content.split_first_chunk() {
            Some((number, rest)) => match u32::from_be_bytes(*number) & 0x7fff_ffff {
                0 => Err(malformed()),
                number => Ok((number, rest)),
            },
            None => Err(malformed()),
        };
        Ok(match kind {
            1 => {
                let (id, rest) = numbered()?;
                // The associated stream and the priority are ignored.
                let block = rest.get(6..).ok_or_else(malformed)?;
                Frame::Open { id, headers: self.inflater.read(block)?, fin }
            }
            2 => {
                let (id, block) = numbered()?;
                Frame::Reply { id, headers: self.inflater.read(block)?, fin }
            }
            3 => {
                let (id, rest) = numbered()?;
                let status = rest.try_into().map_err(|_| malformed())?;
                Frame::Reset { id, status: u32::from_be_bytes(status) }
            }
            6 => match content.try_into().map(u32::from_be_bytes) {
                Ok(id @ 1..) => Frame::Ping(id),
                _ => return Err(malformed()),
            },
            7 => {
                let (last, _) = content.split_first_chunk().filter(|_| content.len() == 8).ok_or_else(malformed)?;
                Frame::GoAway { last: u32::from_be_bytes(*last) }
            }
            8 => {
                let (id, block) = numbered()?;
                Frame::Headers { id, headers: self.inflater.read(block)?, fin }
            }
            _ => Frame::Other,
        })
    }
}

/// Writes the frames of one direction of a connection.
#[derive(Debug, Default)]
pub struct Encoder {
    deflater: Deflater,
}

impl Encoder {
    /// Appends `frame` to `output`. Data has at most [`MAX_DATA`] bytes; headers fit into a frame.
    pub fn write(&mut self, frame: &Frame, output: &mut BytesMut) {
        match frame {
            Frame::Open { id, headers, fin } => {
                let block = self.deflater.write(headers);
                control(1, *fin, &[&id.to_be_bytes(), &[0; 6], &block], output);
            }
            Frame::Reply { id, headers, fin } => {
                let block = self.deflater.write(headers);
                control(2, *fin, &[&id.to_be_bytes(), &block], output);
            }
            Frame::Headers { id, headers, fin } => {
                let block = self.deflater.write(headers);
                control(8, *fin, &[&id.to_be_bytes(), &block], output);
            }
            Frame::Reset { id, status } => control(3, false, &[&id.to_be_bytes(), &status.to_be_bytes()], output),
            Frame::Ping(id) => control(6, false, &[&id.to_be_bytes()], output),
            Frame::GoAway { last } => control(7, false, &[&last.to_be_bytes(), &[0; 4]], output),
            Frame::Data { id, data, fin } => {
                output.extend_from_slice(&id.to_be_bytes());
                output.extend_from_slice(&flags_and_length(*fin, data.len()));
                output.extend_from_slice(data);
            }
            Frame::Other => {}
        }
    }
}

fn control(kind: u16, fin: bool, content: &[&[u8]], output: &mut BytesMut) {
    output.extend_from_slice(&[CONTROL, VERSION as u8]);
    output.extend_from_slice(&kind.to_be_bytes());
    output.extend_from_slice(&flags_and_length(fin, content.iter().map(|part| part.len()).sum()));
    for part in content {
        output.extend_from_slice(part);
    }
}

/// The flags and the length, in 24 bits.
fn flags_and_length(fin: bool, length: usize) -> [u8; 4] {
    // Every frame written here is a few bytes or at most `MAX_DATA` long.
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    [u8::from(fin) * FIN, high, middle, low]
}

/// Feeds arbitrary bytes to a decoder, at once and one by one. The frames must be equal and within the limits.
///
/// # Panics
///
/// If that does not hold.
pub fn check(bytes: &[u8]) {
    let read = |step: usize| {
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
        let (mut frames, mut data) = (Vec::new(), 0);
        for part in bytes.chunks(step.max(1)) {
            input.extend_from_slice(part);
            loop {
                match decoder.next(&mut input) {
                    Ok(None) => break,
                    Ok(Some(Frame::Data { data: piece, .. })) => {
                        assert!(piece.len() <= MAX_DATA, "a piece of {} bytes", piece.len());
                        data += piece.len();
                    }
                    Ok(Some(frame)) => frames.push(frame),
                    Err(error) => return (frames, data, Some(error)),
                }
            }
            assert!(input.len() < HEAD_LEN + MAX_CONTROL, "{} bytes wait", input.len());
        }
        (frames, data, None)
    };
    assert_eq!(read(bytes.len()), read(1), "frames depend on how the bytes arrive");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
