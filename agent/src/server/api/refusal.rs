//! Refusals as Kubernetes' `Status`: code, reason, and for a faulty pod a cause for each fault.

use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

use crate::pod::{Fault, Severity};
use crate::server::pods::json;
use crate::source::push::PushError;

/// A refusal on its way to the client.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    code: StatusCode,
    status: Status,
}

impl Refusal {
    /// The refusal of a request about the pod `name`.
    pub(super) fn of(error: &PushError, name: &str) -> Self {
        let (code, reason) = match error {
            PushError::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            PushError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            PushError::NotFound { .. } => (StatusCode::NOT_FOUND, "NotFound"),
            PushError::BeingDeleted { .. } | PushError::Claimed { .. } | PushError::NotPushed { .. } => {
                (StatusCode::CONFLICT, "Conflict")
            }
            PushError::NotKept { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            PushError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        };
        let (message, causes) = match error {
            PushError::Invalid(faults) => {
                let errors = faults.iter().filter(|fault| fault.severity == Severity::Error);
                (format!("Pod \"{name}\" is invalid: {error}"), Some(errors.map(cause).collect()))
            }
            error => (error.to_string(), None),
        };
        let details =
            StatusDetails { kind: Some("pods".to_owned()), name: Some(name.to_owned()), causes, ..StatusDetails::default() };
        Self::new(code, reason, message, Some(details))
    }

    /// A body that did not arrive, or is too large.
    pub(super) fn of_body(rejection: &BytesRejection, limit: usize) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {} MiB", limit >> 20);
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message, None)
            }
            code => Self::new(code, "BadRequest", rejection.body_text(), None),
        }
    }

    fn new(code: StatusCode, reason: &str, message: String, details: Option<StatusDetails>) -> Self {
        let status = Status {
            status: Some("Failure".to_owned()),
            code: Some(i32::from(code.as_u16())),
            reason: Some(reason.to_owned()),
            message: Some(message),
            details,
            ..Status::default()
        };
        Self { code, status }
    }
}

/// One fault as a cause: kubectl shows field and message.
fn cause(fault: &Fault) -> StatusCause {
    let reason = match fault.message.as_str() {
        "required" => "FieldValueRequired",
        "no such field" => "FieldValueForbidden",
        _ => "FieldValueInvalid",
    };
    let said = Fault { origin: "".into(), path: String::new(), ..fault.clone() };
    StatusCause {
        field: Some(fault.path.clone()).filter(|path| !path.is_empty()),
        message: Some(said.to_string()),
        reason: Some(reason.to_owned()),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.code, json(&self.status)).into_response()
    }
}
