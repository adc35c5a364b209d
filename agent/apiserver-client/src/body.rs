//! The bodies of requests to an apiserver and of its answers.

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use tower::BoxError;

/// The body of a request or an answer, of any kind.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
