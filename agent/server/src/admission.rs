//! Admits a request to its route or refuses it. Local callers are judged by their connection, callers on the network
//! by the gate.

use axum::extract::Request;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::{IntoResponse, Response};

use super::authorization::authorize;
use super::caller::Caller;
use super::connection::ConnectionSlot;
use super::gate::NetworkClient;
use super::permission::{Permission, Refusal};

/// Checks whether the request's caller may use a route with this permission; `None` means that no such route exists.
/// The error is the response to a caller who may not.
pub(super) async fn admit(permission: Option<Permission>, request: &mut Request) -> Result<(), Response> {
    let decision = match request.extensions().get::<Caller>().cloned() {
        Some(Caller::Network(client)) => return admit_from_network(&client, permission, request).await,
        Some(caller) => authorize(&caller, permission),
        // A listener that names no caller admits no request.
        None => Err(Refusal::Unknown),
    };
    decision.map_err(Refusal::into_response)
}

async fn admit_from_network(
    client: &NetworkClient,
    permission: Option<Permission>,
    request: &mut Request,
) -> Result<(), Response> {
    let decision = client.admit(permission, request).await;
    let place = request.extensions().get::<ConnectionSlot>();
    match decision {
        Ok(()) => {
            place.inspect(|place| place.prove());
            Ok(())
        }
        Err(refusal) => {
            let mut response = refusal.into_response();
            // A client without any admitted request gets one response, then the connection closes.
            if place.is_some_and(|place| !place.is_proven()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Err(response)
        }
    }
}
