//! Why a request failed, sorted by what helps.

use std::error::Error;
use std::time::Duration;

use hyper::http;
use limpet_model::error_chain::causes;
use tower::BoxError;

use crate::credentials_error::CredentialsError;
use crate::kubeconfig::KubeconfigError;

/// How many characters of a server's message are kept. Kubernetes' own name every field that is wrong.
const MAX_MESSAGE: usize = 16 << 10;

/// What is wrong with a certificate that one side refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateFault {
    /// It has expired.
    Expired,
    /// Its time has not come: the clock of the side that refuses it is behind.
    NotYetValid,
    /// Anything else.
    Untrusted,
}

/// How the apiserver's answer to a version that it has not reached begins (`NewTooLargeResourceVersionError`).
const TOO_LARGE: &str = "Too large resource version";
/// How it ends its refusal to create something in a namespace that is being deleted (its cause `NamespaceTerminating`).
const TERMINATING: &str = "because it is being terminated";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The node's own credentials cannot be read, or the program that prints them failed.
    #[error("{0}")]
    Credentials(String),
    /// The server is not reachable.
    #[error("{0}")]
    Unreachable(String),
    /// One side refuses the other's certificate.
    #[error("{message}")]
    Certificate {
        /// What is wrong with it.
        fault: CertificateFault,
        /// TLS's message.
        message: String,
    },
    /// No complete answer within that time.
    #[error("no answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// The server answers that it did not do it.
    #[error("{message} ({code})")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Kubernetes' word for it: `NotFound`, `Conflict`, `Forbidden`…
        reason: String,
        /// The server's message.
        message: String,
        /// How long the server wants the client to wait before the next attempt.
        retry_after: Option<Duration>,
    },
    /// The answer is not what Kubernetes answers.
    #[error("unexpected answer: {0}")]
    Unreadable(String),
}

impl RequestError {
    /// The HTTP status of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether there is no object of that name: 404.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether it is another one, or there is one already: 409.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the version that a watch is to begin at is none that the server has: too old (410), or newer than all that
    /// it knows, as after a backup was restored. Only a new list helps.
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Refused { code: 410, .. } => true,
            Self::Refused { code: 504, message, .. } => message.contains(TOO_LARGE),
            _ => false,
        }
    }

    /// Whether nothing can be created in the namespace, which is being deleted.
    pub fn is_of_terminating_namespace(&self) -> bool {
        matches!(self, Self::Refused { code: 403, message, .. } if message.ends_with(TERMINATING))
    }

    /// How long the server wants the client to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// A refusal.
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
            // The token is refreshed within a request.
            if let Some(error) = cause.downcast_ref::<CredentialsError>() {
                return Self::Credentials(error.to_string());
            }
            // The request has no form in HTTP: it is too long.
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

/// The certificate error that TLS reports.
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

/// Whether the server ended the connection by GOAWAY before it looked at the request, as one does that has its clients
/// reconnect (RFC 9113, section 6.8): the request may be sent again.
pub(crate) fn was_not_processed(error: &(dyn Error + 'static)) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<h2::Error>())
        .any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// The innermost cause, which is the most specific one; for a TLS error, with the fault of the certificate.
fn innermost(error: &(dyn Error + 'static)) -> (String, Option<CertificateFault>) {
    let (mut message, mut found) = (String::new(), None);
    for cause in causes(error) {
        message = cause.to_string();
        found = cause.downcast_ref().map(fault);
        if found.is_some() {
            break;
        }
    }
    (message, found)
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
