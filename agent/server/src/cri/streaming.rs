//! The streaming server of `Exec`, `Attach` and `PortForward`. Each call returns a URL on loopback with a token,
//! which opens one connection within a minute.
//!
//! The server passes the request on to kubelet's routes. It starts to listen at the first such call.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use form_urlencoded::Serializer;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tower::ServiceExt as _;

use super::super::caller::Caller;
use super::super::connection::{self, Plain};
use super::super::kubelet::KubeletRoutes;

/// The lifetime of a token, as with containerd.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// The most valid tokens at once.
const MAX_TOKENS: usize = 64;
/// The random bytes in a token.
const TOKEN_LEN: usize = 16;

/// Makes kubelet's routes for a connection: it uses one of them, and few clients come this way.
pub(crate) type MakeRoutes = dyn Fn() -> KubeletRoutes + Send + Sync;

#[derive(Clone)]
pub(super) struct Streaming {
    inner: Arc<Inner>,
}

struct Inner {
    tokens: Mutex<Tokens>,
    port: OnceCell<u16>,
    routes: Box<MakeRoutes>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Streaming {
    /// A server for these routes. It runs as one of `tasks` until `stop`.
    pub(super) fn new(routes: Box<MakeRoutes>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { inner: Arc::new(Inner { tokens: Mutex::default(), port: OnceCell::new(), routes, tasks, stop }) }
    }

    /// A URL that opens one connection to kubelet's route at `path` with this query.
    ///
    /// # Errors
    ///
    /// Too many tokens are valid, or the server cannot listen.
    pub(super) async fn url(&self, path: &[String], query: &[(&str, &str)]) -> Result<String, Status> {
        let port = self.inner.port.get_or_try_init(|| self.listen()).await?;
        let token = random()?;
        let target = target(path, query);
        if !self.inner.tokens().add(token.clone(), target, Instant::now()) {
            let message = format!("{MAX_TOKENS} connections were asked for and not opened; try again in a minute");
            return Err(Status::resource_exhausted(message));
        }
        Ok(format!("http://{}:{port}/{token}", Ipv4Addr::LOCALHOST))
    }

    async fn listen(&self) -> Result<u16, Status> {
        let failed = |error| Status::internal(format!("the streaming server cannot listen on loopback: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        // A fallback instead of a route: a route's path parameters would be added to those of kubelet's routes.
        let app = Router::new().fallback(connect).with_state(self.clone());
        // A client with a token may stay silent for any time.
        let listener = Plain { listener, caller: Caller::Streaming };
        self.inner.tasks.spawn(connection::serve(listener, app, self.inner.stop.clone()));
        Ok(port)
    }
}

impl Inner {
    fn tokens(&self) -> std::sync::MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes a request on to the target of its token.
async fn connect(State(server): State<Streaming>, mut request: Request) -> Response {
    let token = request.uri().path().trim_start_matches('/');
    let target = server.inner.tokens().take(token, Instant::now());
    // A page in a browser on this node must not use a token.
    let target = target.filter(|_| !request.headers().contains_key(header::ORIGIN));
    let Some(target) = target else { return StatusCode::NOT_FOUND.into_response() };
    *request.uri_mut() = target;
    (server.inner.routes)().0.into_router().oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// A kubelet route with its query. Names have no characters that a path would have to escape.
fn target(path: &[String], query: &[(&str, &str)]) -> Uri {
    let query = Serializer::new(String::new()).extend_pairs(query).finish();
    format!("/{}?{query}", path.join("/")).parse().unwrap_or_default()
}

/// Random hexadecimal digits that cannot be guessed.
fn random() -> Result<String, Status> {
    let mut bytes = [0; TOKEN_LEN];
    let filled = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| Status::internal("the kernel gives no random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The valid tokens with their targets.
#[derive(Debug, Default)]
struct Tokens(BTreeMap<String, (Uri, Instant)>);

impl Tokens {
    /// Returns false if there are too many.
    fn add(&mut self, token: String, target: Uri, now: Instant) -> bool {
        self.0.retain(|_, (_, since)| now.duration_since(*since) < TOKEN_LIFETIME);
        let has_room = self.0.len() < MAX_TOKENS;
        if has_room {
            self.0.insert(token, (target, now));
        }
        has_room
    }

    /// Takes the token's target; a token works once.
    fn take(&mut self, token: &str, now: Instant) -> Option<Uri> {
        let (target, since) = self.0.remove(token)?;
        (now.duration_since(since) < TOKEN_LIFETIME).then_some(target)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_for_a_minute() {
        let mut tokens = Tokens::default();
        let (now, uri) =
            (Instant::now(), target(&["exec", "default", "web", "main"].map(str::to_owned), &[("command", "a b&c")]));
        assert_eq!(uri, "/exec/default/web/main?command=a+b%26c");
        assert!(tokens.add("a".to_owned(), uri.clone(), now) && tokens.add("b".to_owned(), uri.clone(), now));
        assert_eq!(tokens.take("a", now), Some(uri));
        assert_eq!(tokens.take("a", now), None, "it was used");
        assert_eq!(tokens.take("b", now + TOKEN_LIFETIME), None, "it is too old");
        for number in 0..MAX_TOKENS {
            assert!(tokens.add(number.to_string(), Uri::default(), now));
        }
        assert!(!tokens.add("more".to_owned(), Uri::default(), now), "there are too many");
        assert!(tokens.add("later".to_owned(), Uri::default(), now + TOKEN_LIFETIME), "the old ones are forgotten");
    }

    #[test]
    fn tokens_differ_and_are_long() {
        let (first, other) = (random().unwrap(), random().unwrap());
        assert!(first != other && first.len() == 2 * TOKEN_LEN, "{first} {other}");
    }
}
