//! A stream that fails when its client has not read for too long, or is gone.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use limpet_host::tcp::Delivery;

use super::delivery::Deliveries;
use super::place::ConnectionSlot;

/// A stream whose writes fail with `TimedOut` when none has made progress for the given time and the client has no
/// admitted request yet: an admitted client may pause logs in a pager. Reads may take any time, because the server
/// bounds how long a request takes to arrive. Both fail once data is lost on its way to the client.
pub(super) struct Deadline<S> {
    stream: S,
    timeout: Duration,
    place: ConnectionSlot,
    delivery: Option<fn(&S) -> Delivery>,
    deliveries: Deliveries,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Deadline<S> {
    pub(super) fn new(
        stream: S,
        timeout: Duration,
        place: ConnectionSlot,
        delivery: Option<fn(&S) -> Delivery>,
    ) -> Self {
        Self { stream, timeout, place, delivery, deliveries: Deliveries::default(), stalled: None }
    }

    /// Records that data is on its way to the client.
    fn sent(&mut self, context: &mut Context<'_>) {
        if self.delivery.is_some() {
            self.deliveries.sent(context);
        }
    }

    /// Fails if the client is gone.
    fn lost<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Self { stream, delivery: Some(delivery), deliveries, .. } = self else { return Poll::Pending };
        let gone = |()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client is gone"));
        deliveries.poll_lost(|| delivery(stream), context).map(gone)
    }

    /// Applies the time limit to the result of a write.
    fn limit<T>(&mut self, result: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if let failed @ Poll::Ready(_) = self.lost(context) {
            return failed;
        }
        if result.is_ready() || self.place.is_proven() {
            self.stalled = None;
            return result;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match stalled.as_mut().poll(context) {
            Poll::Pending => result,
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing"))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Deadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.lost(context),
            read => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(context);
        self.limit(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(context);
        self.limit(result, context)
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
