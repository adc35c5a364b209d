//! JSON responses.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A JSON response, serialized immediately because it borrows its data.
pub(super) fn json(document: &impl Serialize) -> Response {
    match serde_json::to_vec(document) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot serialize the response: {error}")).into_response()
        }
    }
}
