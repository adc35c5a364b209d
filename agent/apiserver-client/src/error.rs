//! Why a request failed, by what would help.

use std::error::Error;
use std::time::Duration;

use hyper::http;
use limpet_model::error_chain::causes;
use tower::BoxError;

use crate::credentials_error::CredentialsError;
use crate::kubeconfig::KubeconfigError;

/// The most characters of a server's message. Kubernetes' messages name every invalid field.
const MAX_MESSAGE: usize = 16 << 10;

/// Why one side refuses the other's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateFault {
    Expired,
    /// The certificate is not valid yet: the refusing side's clock is behind.
    NotYetValid,
    /// Any other reason.
    Untrusted,
}

/// The prefix of the apiserver's answer to a version that it has not reached (`NewTooLargeResourceVersionError`).
const TOO_LARGE: &str = "Too large resource version";
/// The end of its refusal to create an object in a namespace that is being deleted (cause `NamespaceTerminating`).
const TERMINATING: &str = "because it is being terminated";

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The node's credentials cannot be read, or the program that prints them failed.
    #[error("{0}")]
    Credentials(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{message}")]
    Certificate {
        fault: CertificateFault,
        /// TLS's message.
        message: String,
    },
    /// There was no complete answer within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// The server refused the request.
    #[error("{message} ({code})")]
    Refused {
        code: u16,
        /// Kubernetes' reason: `NotFound`, `Conflict`, `Forbidden`…
        reason: String,
        message: String,
        /// How long the server asks the client to wait.
        retry_after: Option<Duration>,
    },
    /// The answer cannot be decoded.
    #[error("unexpected answer: {0}")]
    Unreadable(String),
}

impl RequestError {
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the object does not exist: 404.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the object has changed or already exists: 409.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the server does not have the version at which a watch should begin: the version is too old (410), or
    /// newer than the server's, for example after a restore. Only a new list helps.
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Refused { code: 410, .. } => true,
            Self::Refused { code: 504, message, .. } => message.contains(TOO_LARGE),
            _ => false,
        }
    }

    /// Whether creation failed because the namespace is being deleted.
    pub fn is_of_terminating_namespace(&self) -> bool {
        matches!(self, Self::Refused { code: 403, message, .. } if message.ends_with(TERMINATING))
    }

    /// How long the server asks the client to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn refused(status: &kube::core::Status) -> Self {
        let seconds = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
        Self::Refused {
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.chars().take(MAX_MESSAGE).collect(),
            retry_after: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
}

impl From<KubeconfigError> for RequestError {
    fn from(error: KubeconfigError) -> Self {
        Self::Credentials(error.to_string())
    }
}

impl From<CredentialsError> for RequestError {
    fn from(error: CredentialsError) -> Self {
        Self::Credentials(error.to_string())
    }
}

impl From<BoxError> for RequestError {
    fn from(error: BoxError) -> Self {
        for cause in causes(&*error) {
            // The token is renewed within a request.
            if let Some(error) = cause.downcast_ref::<CredentialsError>() {
                return Self::Credentials(error.to_string());
            }
            // The request cannot be sent as HTTP, because it is too long.
            if let Some(error) = cause.downcast_ref::<http::Error>() {
                return Self::Unreadable(error.to_string());
            }
        }
        match innermost(&*error) {
            (message, Some(fault)) => Self::Certificate { fault, message },
            (message, None) => Self::Unreachable(message),
        }
    }
}

fn fault(error: &rustls::Error) -> CertificateFault {
    use rustls::{AlertDescription, CertificateError};
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })
        | rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => CertificateFault::Expired,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => CertificateFault::NotYetValid,
        _ => CertificateFault::Untrusted,
    }
}

/// Whether the server closed the connection with GOAWAY before it processed the request, to make clients reconnect
/// (RFC 9113, section 6.8). The request may then be sent again.
pub(crate) fn was_not_processed(error: &(dyn Error + 'static)) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<h2::Error>())
        .any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// The innermost and thus most specific cause, with the certificate's fault if it is a TLS error.
fn innermost(error: &(dyn Error + 'static)) -> (String, Option<CertificateFault>) {
    let (mut message, mut known) = (String::new(), None);
    for cause in causes(error) {
        message = cause.to_string();
        known = cause.downcast_ref().map(fault);
        if known.is_some() {
            break;
        }
    }
    (message, known)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_innermost_cause_counts_through_io_errors() {
        use rustls::CertificateError::{Expired, NotValidYet, UnknownIssuer};
        let table = [
            (NotValidYet, CertificateFault::NotYetValid),
            (Expired, CertificateFault::Expired),
            (UnknownIssuer, CertificateFault::Untrusted),
        ];
        for (error, expected) in table {
            let tls = rustls::Error::InvalidCertificate(error);
            let wrapped: BoxError = Box::new(io::Error::other(io::Error::other(tls.clone())));
            assert!(matches!(RequestError::from(wrapped), RequestError::Certificate { fault, message }
                if fault == expected && message == tls.to_string()));
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let text = refused.to_string();
        let error = RequestError::from(BoxError::from(io::Error::other(refused)));
        assert!(matches!(error, RequestError::Unreachable(said) if said == text));
    }

    #[test]
    fn a_status_of_the_server_is_kept() {
        let status = kube::core::Status::failure("pods \"web\" not found", "NotFound").with_code(404);
        let error = RequestError::refused(&status);
        assert!(error.is_not_found() && !error.is_conflict() && error.retry_after().is_none());
        assert_eq!(error.to_string(), "pods \"web\" not found (404)");
    }
}
