//! gRPC services on local sockets, for the callers of limpet's own socket; others get the same refusal.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use tonic::Status;

use super::authorization::authorize;
use super::caller::Caller;
use super::permission::{Permission, Refusal};

/// The largest message accepted from a client.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Guards the services of a socket. A refused caller does not learn which services exist.
pub(super) fn guarded(services: Router) -> Router {
    services.fallback(async || refused(Status::unimplemented("limpet has no such service"))).layer(from_fn(enforce))
}

/// The layer of every call: passes it on only if the caller may use the socket.
async fn enforce(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    match caller.map_or(Err(Refusal::Unknown), |caller| authorize(caller, Some(Permission::Write))) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(Status::permission_denied(refusal.to_string())),
    }
}

fn refused(status: Status) -> Response {
    status.into_http::<axum::body::Body>().into_response()
}
