//! Failures of single hosts during a pull, and the pull's error that results from them.

use std::time::Duration;

use jiff::Timestamp;
use limpet_model::retry_after::retry_after;
use reqwest::Response;
use reqwest::header::{DATE, RETRY_AFTER};

use super::error::ImageError;

/// Why one host did not answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) cause: String,
}

/// The kinds of failure, as in `ImageError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unreachable,
    Registry,
    /// 400: the host may require TLS.
    BadRequest,
    /// The host is overloaded, and may have asked for a pause.
    Busy(Option<Duration>),
    Unauthorized,
    NotFound,
    Content,
}

impl Failure {
    pub(super) fn new(kind: Kind, cause: impl Into<String>) -> Self {
        Self { kind, cause: cause.into() }
    }

    /// The failure for an answer that is neither content nor a redirect.
    pub(super) fn of_status(response: &Response, before: &str, after: &str) -> Self {
        let status = response.status();
        let kind = match status.as_u16() {
            400 => Kind::BadRequest,
            401 | 403 => Kind::Unauthorized,
            404 => Kind::NotFound,
            429 | 502..=504 => {
                let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
                Kind::Busy(text(RETRY_AFTER).and_then(|value| retry_after(value, text(DATE), Timestamp::now())))
            }
            _ => Kind::Registry,
        };
        Self::new(kind, format!("{before}{status}{after}"))
    }

    pub(super) fn into_error(self, image: &str) -> ImageError {
        let (image, cause) = (image.to_owned(), self.cause);
        match self.kind {
            Kind::Unreachable => ImageError::Unreachable { image, cause },
            Kind::Registry | Kind::BadRequest | Kind::Busy(_) => ImageError::Registry { image, cause },
            Kind::Unauthorized => ImageError::Unauthorized { image, cause },
            Kind::NotFound => ImageError::NotFound { image, cause },
            Kind::Content => ImageError::Content { image, cause },
        }
    }
}
