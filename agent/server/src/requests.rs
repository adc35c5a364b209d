//! Counts the requests of a listener, by route and not by what clients make up.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ALLOW, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;
use tokio::time::Instant;
use tower::Layer as _;

use limpet_telemetry::metrics::{Metrics, RequestKind, ServerType};

/// The routes whose answers become streams, by the beginning of their paths.
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "portForward"];

/// The first parts of kubelet's paths, and of limpet's own: what a path that no route has is counted by, if it begins so.
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

/// Of a WebSocket that reaches the containers' streams or ports without a translation to SPDY.
const OWN_PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"];

/// The methods that routes have.
const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE];

/// The routes, each of whose requests is counted once its answer begins.
pub(super) fn counted(routes: Router, metrics: &Metrics, server_type: ServerType) -> Router {
    // Around them all: as a layer of theirs each route would have a copy.
    let counted = from_fn_with_state((metrics.clone(), server_type), count).layer(routes);
    // Outside the routes, which name the methods of a path after their layers are done.
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

/// `route`: the path of the route; `None`: there is none for the requested path.
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

/// As kubelet shortens paths: the first part, and of metrics the second one, too.
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
