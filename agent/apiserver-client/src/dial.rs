//! Connects to a server over a link that may swallow packets. The kernel retries a connection's first packet at
//! growing intervals and gives up late, so it would take seconds to notice that a link works again. A connection that
//! is not established soon is therefore opened a second time beside the first, and a third; the first to be
//! established counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _};
use hyper::http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use tower::{BoxError, Service, ServiceExt as _};

/// How long a connection may take before a second one is opened. Slow links sometimes take that long, so the first is
/// kept.
const SECOND_CONNECTION_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Dial {
    connector: HttpConnector<Resolver>,
    resolver: Resolver,
}

impl Dial {
    /// Connects with the options that `set` sets on the connector.
    pub(crate) fn new(set: impl FnOnce(&mut HttpConnector<Resolver>)) -> Self {
        let resolver = Resolver { names: GaiResolver::new(), open: Arc::default() };
        let mut connector = HttpConnector::new_with_resolver(resolver.clone());
        set(&mut connector);
        Self { connector, resolver }
    }
}

impl Service<Uri> for Dial {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each attempt waits for its own connector.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { connector, resolver } = self.clone();
        let connect = move || connector.clone().oneshot(uri.clone()).map_err(BoxError::from);
        first_of(connect, move || !resolver.is_asked()).boxed()
    }
}

/// The system's resolver. A lookup occupies a thread until it is answered, so only one runs at a time.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    names: GaiResolver,
    open: Arc<AtomicUsize>,
}

impl Resolver {
    fn is_asked(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

impl Service<Name> for Resolver {
    type Response = GaiAddrs;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<GaiAddrs>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.names.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (question, answer) = (OpenLookup::ask(&self.open), self.names.call(name));
        async move {
            let _question = question;
            answer.await
        }
        .boxed()
    }
}

/// Counts an open lookup until it is dropped.
struct OpenLookup(Arc<AtomicUsize>);

impl OpenLookup {
    fn ask(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for OpenLookup {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of the first of several attempts to succeed. While `more` attempts are useful, one begins every
/// [`SECOND_CONNECTION_DELAY`]. A failure ends them all: the server has refused, or the first attempt has timed out.
async fn first_of<T, E, F: Future<Output = Result<T, E>>>(
    mut connect: impl FnMut() -> F,
    more: impl Fn() -> bool,
) -> Result<T, E> {
    let mut tries = FuturesUnordered::new();
    tries.push(connect());
    loop {
        if let Ok(Some(result)) = tokio::time::timeout(SECOND_CONNECTION_DELAY, tries.next()).await {
            return result;
        }
        if more() {
            tries.push(connect());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, sleep};

    use super::*;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// The result of attempts that end after these seconds, the time of the result and the number of attempts.
    async fn outcome(
        ends: &[(u64, Result<u32, &'static str>)],
        more: bool,
    ) -> (Result<u32, &'static str>, Duration, usize) {
        let (begun, count) = (Instant::now(), Cell::new(0));
        let connect = || {
            let end = ends.get(count.replace(count.get() + 1)).copied();
            async move {
                let (seconds, result) = end.unwrap_or((NEVER.as_secs(), Err("never")));
                sleep(Duration::from_secs(seconds)).await;
                result
            }
        };
        let result = first_of(connect, || more).await;
        (result, begun.elapsed(), count.get())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_connection_that_is_there_counts() {
        let s = Duration::from_secs;
        assert_eq!(outcome(&[(1, Ok(1))], true).await, (Ok(1), s(1), 1));
        assert_eq!(outcome(&[(0, Err("refused")), (0, Ok(2))], true).await, (Err("refused"), s(0), 1));
        // The link is slow, and the first attempt is not given up.
        assert_eq!(outcome(&[(3, Ok(1)), (3, Ok(2))], true).await, (Ok(1), s(3), 2));
        // The link works again after 5 s.
        assert_eq!(outcome(&[(7, Ok(1)), (5, Ok(2)), (1, Ok(3))], true).await, (Ok(3), s(5), 3));
        assert_eq!(outcome(&[(10, Err("late"))], true).await, (Err("late"), s(10), 5));
        assert_eq!(outcome(&[(10, Err("late"))], false).await, (Err("late"), s(10), 1));
    }
}
