//! Errors as Kubernetes' `Status`: code, reason, and one cause for each fault of an invalid document.

use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

use crate::json_response::json;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::pod::{Fault, Severity};

/// An error response with a `Status` as its body.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StatusError {
    code: StatusCode,
    status: Status,
}

impl StatusError {
    /// The response to a failed request for the `resource` called `name`.
    pub(super) fn from_push_error(error: &PushError, resource: Resource, name: &str) -> Self {
        let (code, reason) = match error {
            PushError::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            PushError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            PushError::NotFound { .. } => (StatusCode::NOT_FOUND, "NotFound"),
            PushError::BeingDeleted { .. } | PushError::Claimed { .. } | PushError::NotPushed { .. } => {
                (StatusCode::CONFLICT, "Conflict")
            }
            PushError::NotPersisted { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            PushError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        };
        let (message, causes) = match error {
            PushError::Invalid(faults) => {
                let errors = faults.iter().filter(|fault| fault.severity == Severity::Error);
                (format!("{} \"{name}\" is invalid: {error}", resource.kind()), Some(errors.map(cause).collect()))
            }
            error => (error.to_string(), None),
        };
        let details = StatusDetails {
            kind: Some(resource.plural().to_owned()),
            name: Some(name.to_owned()),
            causes,
            ..StatusDetails::default()
        };
        Self::new(code, reason, message, Some(details))
    }

    /// The error in one sentence.
    pub(super) fn message(&self) -> &str {
        self.status.message.as_deref().unwrap_or_default()
    }

    /// The error for a body that was not received in full, or is too large.
    pub(super) fn of_body(rejection: &BytesRejection, limit: usize) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {} MiB", limit >> 20);
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message, None)
            }
            code => Self::new(code, "BadRequest", rejection.body_text(), None),
        }
    }

    pub(super) fn new(code: StatusCode, reason: &str, message: String, details: Option<StatusDetails>) -> Self {
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

/// A fault as a cause: kubectl prints field and message.
fn cause(fault: &Fault) -> StatusCause {
    let reason = match fault.message.as_str() {
        "required" => "FieldValueRequired",
        "no such field" => "FieldValueForbidden",
        _ => "FieldValueInvalid",
    };
    let short = Fault { origin: "".into(), path: String::new(), ..fault.clone() };
    StatusCause {
        field: Some(fault.path.clone()).filter(|path| !path.is_empty()),
        message: Some(short.to_string()),
        reason: Some(reason.to_owned()),
    }
}

impl IntoResponse for StatusError {
    fn into_response(self) -> Response {
        (self.code, json(&self.status)).into_response()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use limpet_model::pod::PodKey;
    use limpet_model::source::SourceKind;

    #[test]
    fn errors_map_to_the_codes_and_reasons_of_an_apiserver() {
        let key = PodKey::new("default", "web-edge1");
        let missing = PushError::NotFound { resource: Resource::Pod, name: "web".to_owned() };
        let table = [
            (PushError::BadRequest("no".to_owned()), 400, "BadRequest"),
            (PushError::Invalid(Vec::new()), 422, "Invalid"),
            (missing, 404, "NotFound"),
            (PushError::BeingDeleted { key: key.clone() }, 409, "Conflict"),
            (PushError::Claimed { key, by: SourceKind::File, origin: "web.yaml".into() }, 409, "Conflict"),
            (PushError::NotPersisted { reason: "disk full".to_owned() }, 500, "InternalError"),
            (PushError::Stopping, 503, "ServiceUnavailable"),
        ];
        for (error, code, reason) in table {
            let status_error = StatusError::from_push_error(&error, Resource::Pod, "web");
            assert_eq!(
                (status_error.code.as_u16(), status_error.status.reason.as_deref()),
                (code, Some(reason)),
                "{error}"
            );
            assert_eq!(status_error.status.code, Some(i32::from(code)));
        }
    }

    #[test]
    fn an_invalid_pod_has_a_cause_for_each_fault() {
        let faults = vec![
            Fault::error("spec.containers", "required"),
            Fault::error("spec.nme", "no such field").with_remedy("did you mean name?"),
            Fault::warning("spec.schedulerName", "has no effect"),
        ];
        let status = serde_json::to_value(
            StatusError::from_push_error(&PushError::Invalid(faults), Resource::Pod, "web").status,
        )
        .unwrap();
        assert_eq!(
            status["details"],
            json!({
                "kind": "pods",
                "name": "web",
                "causes": [
                    {"field": "spec.containers", "message": "required", "reason": "FieldValueRequired"},
                    {"field": "spec.nme", "message": "no such field; did you mean name?", "reason": "FieldValueForbidden"},
                ],
            })
        );
        assert!(status["message"].as_str().unwrap().starts_with("Pod \"web\" is invalid: spec.containers: required; "));
        assert_eq!((&status["status"], &status["kind"]), (&json!("Failure"), &json!("Status")));
    }
}
