//! Counts a listener's requests by route, so that clients cannot create labels.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ALLOW, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;
use tokio::time::Instant;
use tower::Layer as _;

use limpet_telemetry::metrics::{Metrics, RequestKind, ServerType};

/// The first path segments of routes whose responses become streams.
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "portForward"];

/// The first segments of kubelet's paths and limpet's own. A path without a route is counted by its first segment if
/// it is one of these.
const ROOTS: [&str; 20] = [
    "api",
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "flagz",
    "healthz",
    "limpet",
    "livez",
    "logs",
    "metrics",
    "pods",
    "portForward",
    "readyz",
    "run",
    "runningpods",
    "stats",
    "statusz",
];

/// The protocols of WebSockets that reach containers' streams or ports without a translation to SPDY.
const OWN_PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"];

const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE];

/// The routes, with each request counted once its response begins.
pub(super) fn counted(routes: Router, metrics: &Metrics, server_type: ServerType) -> Router {
    // Wraps all routes: as a layer on them, each route would have its own copy.
    let counted = from_fn_with_state((metrics.clone(), server_type), count).layer(routes);
    // Wraps the router, which sets a path's `Allow` only after its layers are done.
    Router::new().fallback_service(map_response(allow_as_kubelet).layer(counted))
}

/// kubelet does not name HEAD beside GET.
async fn allow_as_kubelet(mut response: Response) -> Response {
    let allowed = response.headers().get(ALLOW).and_then(|allowed| allowed.to_str().ok());
    let methods = allowed.map(|allowed| {
        let methods: Vec<_> = allowed.split(',').map(str::trim).filter(|method| *method != "HEAD").collect();
        methods.join(", ")
    });
    if let Some(methods) = methods.and_then(|methods| HeaderValue::try_from(methods).ok()) {
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

async fn count(State((metrics, server_type)): State<(Metrics, ServerType)>, request: Request, next: Next) -> Response {
    let (method, asked) = (request.method().clone(), request.uri().clone());
    let began = Instant::now();
    let response = next.run(request).await;
    let route = response.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let kind = kind(&method, route, asked.path(), server_type);
    metrics.request_answered(&kind, began.elapsed());
    let protocol = response.headers().get(SEC_WEBSOCKET_PROTOCOL).and_then(|protocol| protocol.to_str().ok());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && protocol.is_some_and(|it| OWN_PROTOCOLS.contains(&it)) {
        metrics.websocket_opened(&kind.path);
    }
    response
}

/// The labels of a request. `route` is the route's path; `None` if the requested path has none.
fn kind(method: &Method, route: Option<&str>, asked: &str, server_type: ServerType) -> RequestKind {
    let known = ROOTS.into_iter().find(|known| *known == root(asked)).unwrap_or("other");
    let path = route.map_or(known, root);
    RequestKind {
        long_running: if LONG_RUNNING.contains(&path) { "true" } else { "false" },
        method: METHODS.iter().find(|known| *known == method).map_or("other", method_name),
        path: path.to_owned(),
        server_type,
    }
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        _ => "DELETE",
    }
}

/// Shortens a path as kubelet does, to its first segment; for metrics to the first two.
fn root(path: &str) -> &str {
    let path = path.trim_start_matches('/');
    let parts = if path.starts_with("metrics/") { 2 } else { 1 };
    path.match_indices('/').nth(parts - 1).map_or(path, |(end, _)| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_make_up_labels() {
        for (method, path, expected) in [
            ("GET", Some("/metrics"), ("GET", "metrics", "false")),
            ("GET", Some("/metrics/resource"), ("GET", "metrics/resource", "false")),
            ("HEAD", Some("/pods/"), ("HEAD", "pods", "false")),
            ("POST", Some("/exec/{namespace}/{pod}/{container}"), ("POST", "exec", "true")),
            ("GET", Some("/portForward/{namespace}/{pod}"), ("GET", "portForward", "true")),
            ("PUT", Some("/limpet/v1/pods"), ("PUT", "limpet", "false")),
            ("BREW", None, ("other", "other", "false")),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let kind = kind(&method, path, "/made-up", ServerType::ReadOnly);
            assert_eq!((kind.method, kind.path.as_str(), kind.long_running), expected, "{path:?}");
        }
        for (asked, expected) in [("/healthz/", "healthz"), ("/healthzjunk", "other"), ("/metrics/hello", "other")] {
            assert_eq!(kind(&Method::GET, None, asked, ServerType::ReadOnly).path, expected);
        }
    }
}
