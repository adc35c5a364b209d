//! gRPC services on local sockets: for those who may use limpet's own socket, refused with the same words.

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

/// The services of a socket: a caller that may not use them does not learn which there are.
pub(super) fn guarded(services: Router) -> Router {
    services.fallback(async || refused(Status::unimplemented("limpet has no such service"))).layer(from_fn(enforce))
}

/// The layer of every call: it is made only if the caller may use the socket.
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
