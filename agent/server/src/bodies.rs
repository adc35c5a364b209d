//! Bounds request bodies: few are in memory at once, and each has to arrive in time. One that is read as it arrives may take
//! as long as it goes on. The body of a refused caller is not read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The most requests with a body that a listener handles at once: a body may have tens of megabytes.
const MAX_BODIES: usize = 4;
/// The longest time for a body to arrive, its wait for a permit included, or for the next piece of one that is read as it
/// arrives.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Permits for a listener's requests with a body; an extension of each request.
#[derive(Clone)]
pub(super) struct BodyPermits(Arc<Semaphore>);

impl Default for BodyPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_BODIES)))
    }
}

/// How a route reads its bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// As a whole, into memory.
    Document,
    /// As it arrives; the handler limits size and number.
    Stream,
}

/// Lets at most [`MAX_BODIES`] requests with a document through at once.
pub(super) async fn bounded(request: Request, next: Next, kind: BodyKind) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let timed = |body| Body::new(Timed { body, kind, end: Box::pin(sleep(BODY_TIMEOUT)) });
    if kind == BodyKind::Stream {
        return next.run(request.map(timed)).await;
    }
    let turns = request.extensions().get::<BodyPermits>().cloned().unwrap_or_default();
    let Ok(Ok(_turn)) = timeout(BODY_TIMEOUT, turns.0.acquire()).await else {
        let message = format!("{MAX_BODIES} other requests with a body are being handled; try again");
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    next.run(request.map(timed)).await
}

/// A body that fails when it has not ended, or not gone on, in time.
struct Timed {
    body: Body,
    kind: BodyKind,
    end: Pin<Box<Sleep>>,
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.end.as_mut().poll(context).is_ready() {
            let message = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            return Poll::Ready(Some(Err(message.into())));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context).map_err(Into::into);
        if polled.is_ready() && self.kind == BodyKind::Stream {
            self.end.as_mut().reset(Instant::now() + BODY_TIMEOUT);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
