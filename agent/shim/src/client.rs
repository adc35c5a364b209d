//! A connection from containerd: its requests, and the responses to them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;

use crate::messages::{Request, Response};
use crate::ttrpc::{Decoder, Frame, encode_response};

/// The most bytes that are buffered for a client that does not read.
const MAX_UNSENT: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Client {
    socket: UnixStream,
    decoder: Decoder,
    unsent: Vec<u8>,
}

impl Client {
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, decoder: Decoder::default(), unsent: Vec::new() })
    }

    /// Receives what is available, and returns the complete requests with their stream ids.
    ///
    /// # Errors
    ///
    /// The connection has ended, or the bytes are not ttrpc.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<(u32, Request)>> {
        let mut requests = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(&buffer[..count]),
                Err(Errno::AGAIN) => return Ok(requests),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = self.decoder.next().map_err(io::Error::other)? {
                if let Frame::Request(stream, request) = frame {
                    requests.push((stream, request));
                }
            }
        }
    }

    /// Sends a response now, or when the client reads.
    pub(crate) fn respond(&mut self, stream: u32, response: &Response) -> io::Result<()> {
        encode_response(stream, response, &mut self.unsent);
        self.send()
    }

    /// Sends buffered bytes.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.socket, &self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.unsent.len() < MAX_UNSENT => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.unsent = Vec::new();
        Ok(())
    }

    /// Whether everything was sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.unsent.is_empty()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
