//! Routes with permissions: the only way to add a route is to name what its caller needs.

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post, put};

use super::admission::admit;
use super::bodies::{self, BodyKind};
use super::permission::Permission;

/// What a route demands of a caller, who may use no route without it, and which bodies it takes.
type Guard = (Option<Permission>, BodyKind);

/// Routes whose handlers read a state `S`. [`guarded`] requires each route's permission.
#[derive(Clone)]
pub(super) struct Routes<S = ()> {
    router: Router<S>,
    /// Method, path and permission of each route.
    #[cfg(test)]
    pub(super) declared: Vec<(&'static str, String, Permission)>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self {
            router: Router::new(),
            #[cfg(test)]
            declared: Vec::new(),
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// GET, and implicitly HEAD.
    pub(super) fn get<T: 'static>(self, path: &str, permission: Permission, handler: impl Handler<T, S>) -> Self {
        self.route("GET", path, permission, get(handler))
    }

    pub(super) fn post<T: 'static>(self, path: &str, permission: Permission, handler: impl Handler<T, S>) -> Self {
        self.route("POST", path, permission, post(handler))
    }

    /// POST with a body of any size, which the handler reads as it arrives.
    pub(super) fn post_stream<T: 'static>(
        self,
        path: &str,
        permission: Permission,
        handler: impl Handler<T, S>,
    ) -> Self {
        self.route_of("POST", path, (Some(permission), BodyKind::Stream), post(handler))
    }

    pub(super) fn put<T: 'static>(self, path: &str, permission: Permission, handler: impl Handler<T, S>) -> Self {
        self.route("PUT", path, permission, put(handler))
    }

    pub(super) fn delete<T: 'static>(self, path: &str, permission: Permission, handler: impl Handler<T, S>) -> Self {
        self.route("DELETE", path, permission, delete(handler))
    }

    /// Every method.
    pub(super) fn any<T: 'static>(self, path: &str, permission: Permission, handler: impl Handler<T, S>) -> Self {
        self.route("*", path, permission, any(handler))
    }

    fn route(self, method: &'static str, path: &str, permission: Permission, handler: MethodRouter<S>) -> Self {
        self.route_of(method, path, (Some(permission), BodyKind::Document), handler)
    }

    #[cfg_attr(not(test), allow(unused_variables, reason = "tests list the methods"))]
    fn route_of(self, method: &'static str, path: &str, guard: Guard, handler: MethodRouter<S>) -> Self {
        let handler = handler.layer(from_fn_with_state(guard, guarded));
        #[cfg(test)]
        let declared =
            self.declared.into_iter().chain(guard.0.map(|permission| (method, path.to_owned(), permission))).collect();
        Self {
            router: self.router.route(path, handler),
            #[cfg(test)]
            declared,
        }
    }

    /// Limits the request bodies of these routes.
    pub(super) fn body_limit(mut self, bytes: usize) -> Self {
        self.router = self.router.layer(DefaultBodyLimit::max(bytes));
        self
    }

    pub(super) fn merge(self, other: Self) -> Self {
        Self {
            router: self.router.merge(other.router),
            #[cfg(test)]
            declared: self.declared.into_iter().chain(other.declared).collect(),
        }
    }

    pub(super) fn with_state(self, state: S) -> Routes {
        Routes {
            router: self.router.with_state(state),
            #[cfg(test)]
            declared: self.declared,
        }
    }
}

impl Routes {
    /// The service of a listener. The response for an unknown path is guarded as well, so that a refused caller
    /// learns nothing.
    pub(super) fn into_router(self) -> Router {
        let unknown = any(async || StatusCode::NOT_FOUND)
            .layer(from_fn_with_state::<_, Guard, _>((None, BodyKind::Document), guarded));
        self.router.fallback_service(unknown)
    }
}

/// The only layer of each route, since each listener has a copy of it per route. The handler runs only if the caller
/// has the route's permission, and few handlers that read a body run at once. The response carries the route's path
/// for the request counter.
async fn guarded(State((permission, body)): State<Guard>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = match admit(permission, &mut request).await {
        Ok(()) => bodies::bounded(request, next, body).await,
        Err(refused) => refused,
    };
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::super::caller::tests::{pod, root};
    use super::super::caller::{Caller, Origin};
    use super::super::permission::Subresource;
    use super::*;

    async fn status(caller: Option<Caller>, method: &str, path: &str) -> u16 {
        let routes = Routes::default()
            .get("/a", Permission::Nodes(Subresource::Pods), async || "pods")
            .put("/a", Permission::Write, async || "written")
            .get("/m", Permission::Nodes(Subresource::Metrics), async || "metrics")
            .body_limit(10);
        let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        routes.into_router().oneshot(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn the_decision_comes_before_the_handler_the_method_and_the_path() {
        let requests = [("GET", "/a"), ("HEAD", "/a"), ("PUT", "/a"), ("POST", "/a"), ("GET", "/m"), ("GET", "/none")];
        let table = [
            ("the host", Some(root(Origin::Host)), [200, 200, 200, 405, 200, 404]),
            ("a pod", Some(root(Origin::Pod(pod("default/web")))), [403; 6]),
            ("the loopback listener", Some(Caller::Anonymous), [403, 403, 403, 403, 200, 404]),
            ("a listener that names no caller", None, [403; 6]),
        ];
        for (who, caller, expected) in table {
            for ((method, path), expected) in requests.into_iter().zip(expected) {
                assert_eq!(status(caller.clone(), method, path).await, expected, "{who}: {method} {path}");
            }
        }
    }
}
