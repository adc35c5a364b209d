//! Why an exchange gave nothing, in words that say what to look at.

use std::error::Error;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use rustls::CertificateError;

use super::schedule::Ended;

/// An exchange that gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Failure {
    /// For people; names no secret.
    pub(super) reason: String,
    /// For the schedule.
    pub(super) ended: Ended,
    /// Certificates are to be read anew before the next try.
    pub(super) tls: bool,
}

impl Failure {
    /// There was no answer, or it broke off.
    pub(super) fn unreached(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ended: Ended::Unreached, tls: false }
    }

    /// An answer that is of no use.
    pub(super) fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ended: Ended::Refused { retry_after: None }, tls: false }
    }

    /// The same, and the server said how long to wait.
    pub(super) fn after(mut self, retry_after: Option<Duration>) -> Self {
        self.ended = Ended::Refused { retry_after };
        self
    }

    /// What the HTTP client says. `now` is the node's clock, which certificates are judged by.
    pub(super) fn of(error: reqwest::Error, now: Timestamp) -> Self {
        let error = error.without_url();
        if let Some(tls) = tls_error(&error) {
            return Self { tls: true, ..Self::unreached(tls_words(tls, now)) };
        }
        if error.is_timeout() {
            return Self::unreached(if error.is_connect() {
                "timeout: no connection"
            } else {
                "timeout: it went silent"
            });
        }
        Self::unreached(words(&error))
    }
}

/// The causes of an error; an `io::Error` hides the one it wraps from `source`.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| cause(*error))
}

fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>())
}

fn tls_words(error: &rustls::Error, now: Timestamp) -> String {
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
            "TLS: the server's certificate is of an authority that is not trusted here; see staticPodURLCAFile"
                .to_owned()
        }
        other => format!("TLS: {other}"),
    }
}

/// The causes' words, without those that only say that there is a cause.
fn words(error: &reqwest::Error) -> String {
    const EMPTY: [&str; 5] = [
        "error sending request",
        "client error (Connect)",
        "client error (SendRequest)",
        "tcp connect error",
        "request or response body error",
    ];
    let mut words: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !EMPTY.contains(&text.as_str()) && !words.iter().any(|said| said.contains(&text)) {
            words.push(text);
        }
    }
    if words.is_empty() { error.to_string() } else { words.join(": ") }
}
