//! Bounds the bytes of a client's handshake. rustls buffers up to 64 KiB of an unfinished message, so anyone who
//! reaches the port could fill the agent's memory with hundreds of connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes of a handshake. A client's certificate with its intermediate authorities takes some 5 KiB; one read
/// of up to 4 KiB may already belong to the first request.
pub(super) const MAX_HANDSHAKE: usize = 16 << 10;

/// A client's stream, of which at most [`MAX_HANDSHAKE`] bytes are read until [`Self::lift`].
#[derive(Debug)]
pub(crate) struct HandshakeLimit<S> {
    stream: S,
    left: Option<usize>,
}

impl<S> HandshakeLimit<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, left: Some(MAX_HANDSHAKE) }
    }

    /// Removes the limit after the handshake.
    pub(super) fn lift(&mut self) {
        self.left = None;
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HandshakeLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let Some(left) = self.left else { return Poll::Ready(Ok(())) };
        match left.checked_sub(buffer.filled().len() - before) {
            Some(left) => {
                self.left = Some(left);
                Poll::Ready(Ok(()))
            }
            None => {
                let message = format!("the TLS handshake has more than {MAX_HANDSHAKE} bytes");
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HandshakeLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
