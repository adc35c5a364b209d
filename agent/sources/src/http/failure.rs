//! Why an exchange failed, with messages that say what to check.

use std::error::Error;
use std::time::Duration;

use jiff::Timestamp;
use limpet_model::error_chain::causes;
use rustls::CertificateError;

use limpet_core::source::http_schedule::ExchangeResult;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// For users; contains no secret.
    pub reason: String,
    /// How the schedule counts it: it decides when the URL is asked again.
    pub result: ExchangeResult,
    /// Whether certificates must be reread before the next attempt.
    pub tls: bool,
    /// Whether the server refuses such requests, rather than to send this document now.
    pub refuses_request: bool,
}

impl Failure {
    /// There was no complete response.
    pub fn unreachable(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), result: ExchangeResult::Unreachable, tls: false, refuses_request: false }
    }

    /// The server has answered, and not with manifests.
    pub fn bad_response(reason: impl Into<String>) -> Self {
        let result = ExchangeResult::BadResponse { retry_after: None };
        Self { reason: reason.into(), result, tls: false, refuses_request: false }
    }

    /// With the delay that the server requested.
    pub fn after(mut self, retry_after: Option<Duration>) -> Self {
        self.result = ExchangeResult::BadResponse { retry_after };
        self
    }

    /// An error of the HTTP client. `now` is the node's clock, by which certificates are checked.
    pub fn new(error: reqwest::Error, now: Timestamp) -> Self {
        let error = error.without_url();
        if let Some(tls) = tls_error(&error) {
            return Self { tls: true, ..Self::unreachable(tls_message(tls, now)) };
        }
        if error.is_timeout() {
            return Self::unreachable(if error.is_connect() {
                "timeout: no connection"
            } else {
                "timeout: no data received"
            });
        }
        Self::unreachable(messages(&error))
    }
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>())
}

fn tls_message(error: &rustls::Error, now: Timestamp) -> String {
    use rustls::Error::InvalidCertificate;
    let clock = now.strftime("%Y-%m-%d %H:%M UTC");
    match error {
        InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            format!("TLS: the server's certificate is not valid yet; this node's clock says {clock}, which looks wrong")
        }
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            format!("TLS: the server's certificate has expired, by this node's clock ({clock})")
        }
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "TLS: the server's certificate is of an authority that is not trusted here; see staticPodURLCAFile, or for bundles bundle.urlCAFile"
                .to_owned()
        }
        other => format!("TLS: {other}"),
    }
}

/// The messages of the causes, without those that only introduce a cause.
fn messages(error: &reqwest::Error) -> String {
    const EMPTY: [&str; 5] = [
        "error sending request",
        "client error (Connect)",
        "client error (SendRequest)",
        "tcp connect error",
        "request or response body error",
    ];
    let mut messages: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !EMPTY.contains(&text.as_str()) && !messages.iter().any(|known| known.contains(&text)) {
            messages.push(text);
        }
    }
    if messages.is_empty() { error.to_string() } else { messages.join(": ") }
}
