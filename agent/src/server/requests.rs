//! Counts the requests of a listener, by route and not by what clients make up.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::time::Instant;

use crate::status::metrics::{Metrics, RequestKind, ServerType};

/// The routes whose answers become streams, by the beginning of their paths.
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "portForward"];

/// The methods that routes have.
const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE];

/// The routes, each of whose requests is counted once its answer begins.
pub(super) fn counted(routes: Router, metrics: &Metrics, server_type: ServerType) -> Router {
    routes.layer(from_fn_with_state((metrics.clone(), server_type), count))
}

async fn count(State((metrics, server_type)): State<(Metrics, ServerType)>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let kind = kind(request.method(), path, server_type);
    let began = Instant::now();
    let response = next.run(request).await;
    metrics.request_answered(&kind, began.elapsed());
    response
}

/// `path`: that of the route; `None`: there is no such route.
fn kind(method: &Method, path: Option<&str>, server_type: ServerType) -> RequestKind {
    let path = root(path.unwrap_or("/invalid"));
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
            ("BREW", None, ("other", "invalid", "false")),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let kind = kind(&method, path, ServerType::ReadOnly);
            assert_eq!((kind.method, kind.path.as_str(), kind.long_running), expected, "{path:?}");
        }
    }
}
