//! The frames of ttrpc: a header of ten bytes (length, stream, type, flags) and a message.

use prost::Message;

use crate::messages::{Request, Response};

const HEADER: usize = 10;
/// The longest message, as in containerd's own implementation.
const MAX_MESSAGE: usize = 4 << 20;
/// The type of a frame with a request.
const REQUEST: u8 = 1;
/// The type of a frame with a response.
const RESPONSE: u8 = 2;

/// Why received bytes are not ttrpc.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// A message longer than the protocol allows.
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// The frame's message cannot be decoded.
    #[error("a message that cannot be decoded")]
    Undecodable,
}

/// Splits received bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    received: Vec<u8>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    /// A request on a stream.
    Request(u32, Request),
    /// The response on a stream.
    Response(u32, Response),
    /// A frame of another type, which is skipped.
    Other,
}

impl Decoder {
    /// Adds received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next complete frame; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((header, rest)) = self.received.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, _flags] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_MESSAGE {
            return Err(FrameError::TooLong(length));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        let frame = match kind {
            REQUEST => Request::decode(message).map(|request| Frame::Request(stream, request)),
            RESPONSE => Response::decode(message).map(|response| Frame::Response(stream, response)),
            _ => Ok(Frame::Other),
        };
        let frame = frame.map_err(|_| FrameError::Undecodable)?;
        self.received.drain(..HEADER + length);
        if self.received.is_empty() {
            // A connection is silent most of the time, so the buffer is freed.
            self.received = Vec::new();
        }
        Ok(Some(frame))
    }
}

pub(crate) fn encode_request(stream: u32, request: &Request, out: &mut Vec<u8>) {
    encode(stream, REQUEST, request, out);
}

pub(crate) fn encode_response(stream: u32, response: &Response, out: &mut Vec<u8>) {
    encode(stream, RESPONSE, response, out);
}

fn encode(stream: u32, kind: u8, message: &impl Message, out: &mut Vec<u8>) {
    // No message of a shim comes near the limit.
    let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&message.encode_to_vec());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            service: "containerd.task.v2.Task".into(),
            method: "State".into(),
            payload: vec![1, 2],
            timeout_nano: 5,
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_were_received() {
        let mut bytes = Vec::new();
        encode_request(7, &request(), &mut bytes);
        encode_response(9, &Response { status: None, payload: vec![3] }, &mut bytes);
        bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 3, 0, 42]);
        for step in [1, 3, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            let response = Response { status: None, payload: vec![3] };
            assert_eq!(frames, [Frame::Request(7, request()), Frame::Response(9, response), Frame::Other]);
            assert_eq!(decoder.received.capacity(), 0, "a silent connection keeps no buffer");
        }
    }

    #[test]
    fn what_is_no_ttrpc_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(b"GET / HTTP/1.1\r\n");
        assert_eq!(decoder.next(), Err(FrameError::TooLong(0x4745_5420)));
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0, 0, 1, 0, 0, 0, 1, REQUEST, 0, 0xff]);
        assert_eq!(decoder.next(), Err(FrameError::Undecodable));
    }
}
