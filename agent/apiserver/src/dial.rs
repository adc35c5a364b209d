//! Connections to a server behind a link that may swallow packets. The kernel repeats the first packet of a connection ever
//! more rarely, after 1, 3 and 7 s: a link that is open again would not be noticed for seconds. So a connection that is not
//! there soon is asked for a second time beside the first, and a third; the first one that is there counts.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _};
use hyper::http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use tower::{BoxError, Service, ServiceExt as _};

/// How long a connection may take before it is asked for once more. Slow lines take that long now and then: none is given up.
const SOON: Duration = Duration::from_secs(2);

/// Connects by TCP.
#[derive(Debug, Clone)]
pub(crate) struct Dial(pub(crate) HttpConnector);

impl Service<Uri> for Dial {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each try waits for its own connector.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.0.clone();
        first_of(move || connector.clone().oneshot(uri.clone()).map_err(BoxError::from)).boxed()
    }
}

/// What the first of several tries brings, the newest of which began at most [`SOON`] ago. A failure ends them all: it is the
/// server's refusal, or the end of the first one's time.
async fn first_of<T, E, F: Future<Output = Result<T, E>>>(mut connect: impl FnMut() -> F) -> Result<T, E> {
    let mut tries = FuturesUnordered::new();
    loop {
        tries.push(connect());
        if let Ok(Some(result)) = tokio::time::timeout(SOON, tries.next()).await {
            return result;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, sleep};

    use super::*;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// The result of tries that end after so many seconds, when it came, and how many there were.
    async fn outcome(ends: &[(u64, Result<u32, &'static str>)]) -> (Result<u32, &'static str>, Duration, usize) {
        let (begun, count) = (Instant::now(), Cell::new(0));
        let result = first_of(|| {
            let end = ends.get(count.replace(count.get() + 1)).copied();
            async move {
                let (seconds, result) = end.unwrap_or((NEVER.as_secs(), Err("never")));
                sleep(Duration::from_secs(seconds)).await;
                result
            }
        })
        .await;
        (result, begun.elapsed(), count.get())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_connection_that_is_there_counts() {
        let s = Duration::from_secs;
        assert_eq!(outcome(&[(1, Ok(1))]).await, (Ok(1), s(1), 1));
        assert_eq!(outcome(&[(0, Err("refused")), (0, Ok(2))]).await, (Err("refused"), s(0), 1));
        // A slow line: the first one is not given up.
        assert_eq!(outcome(&[(3, Ok(1)), (3, Ok(2))]).await, (Ok(1), s(3), 2));
        // A link that is open again after 5 s.
        assert_eq!(outcome(&[(7, Ok(1)), (5, Ok(2)), (1, Ok(3))]).await, (Ok(3), s(5), 3));
        assert_eq!(outcome(&[(10, Err("late"))]).await, (Err("late"), s(10), 5));
    }
}
