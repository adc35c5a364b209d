//! Converts refusals in plain text with a `Retry-After` header (RFC 9110, section 10.2.3), as API Priority and
//! Fairness and proxies send them, to a `Status` as in Kubernetes' other answers, for requests and watches alike.

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{self as http_body, Bytes};
use hyper::http::{self, HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tower::BoxError;

use crate::body::{Body, full_body};

/// The most bytes of such an answer that are read.
const MAX_TEXT: usize = 64 * 1_024;

/// Returns the response; replaces a refusal's text by a `Status` with the pause.
pub(crate) async fn with_status<B>(answer: http::Response<B>) -> Result<http::Response<Body>, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = answer.into_parts();
    let Some(seconds) = asked(head.status, &head.headers) else {
        return Ok(http::Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
    };
    // A text that is too long or truncated is dropped; the pause is what matters.
    let bytes = Limited::new(body, MAX_TEXT).collect().await.map(|text| text.to_bytes()).unwrap_or_default();
    let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let bytes = match document["kind"] == "Status" {
        true => bytes,
        false => status(head.status, &bytes, seconds).to_string().into(),
    };
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(http::Response::from_parts(head, full_body(bytes)))
}

/// The seconds to wait in a refusal in text. A date is ignored, because the node's clock may be wrong.
fn asked(status: StatusCode, headers: &HeaderMap) -> Option<u32> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_refusal = status.is_client_error() || status.is_server_error();
    let is_text = text(header::CONTENT_TYPE).is_none_or(|kind| kind.starts_with("text/"));
    text(header::RETRY_AFTER)?.trim().parse().ok().filter(|_| is_refusal && is_text)
}

fn status(status: StatusCode, text: &[u8], seconds: u32) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": String::from_utf8_lossy(text).trim(),
        "reason": status.canonical_reason().unwrap_or_default().replace(' ', ""),
        "code": status.as_u16(),
        "details": { "retryAfterSeconds": seconds },
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;
    use crate::error::RequestError;
    use crate::request::{Request, Resource, Selector, WatchFrom};

    fn pause(error: &RequestError) -> (Option<u64>, String) {
        (error.retry_after().map(|pause| pause.as_secs()), error.to_string())
    }

    #[tokio::test]
    async fn a_pause_that_the_head_alone_asks_for_is_kept() {
        let answers = |code: u16, head: &'static str, kind: &'static str, body: &'static str| {
            Client::over(tower::service_fn(move |_: http::Request<Body>| async move {
                let answer = http::Response::builder().status(code).header(header::RETRY_AFTER, head);
                Ok::<_, BoxError>(answer.header(header::CONTENT_TYPE, kind).body(body.to_owned()).unwrap())
            }))
        };
        let document = r#"{"kind":"Status","message":"busy","code":429,"details":{"retryAfterSeconds":7}}"#;
        let table = [
            (429, "3", "text/plain; charset=utf-8", "Too many requests\n", (Some(3), "Too many requests (429)")),
            (503, "30", "text/html", "<html>", (Some(30), "<html> (503)")),
            (429, "Wed, 21 Oct 2026 07:28:00 GMT", "text/plain", "no", (None, "no (429)")),
            (429, "1", "application/json", document, (Some(7), "busy (429)")),
        ];
        for (code, head, kind, body, expected) in table {
            let client = answers(code, head, kind, body);
            let refused = client.send(Request::get(Resource::Nodes)).await.unwrap_err();
            assert_eq!(pause(&refused), (expected.0, expected.1.to_owned()));
            let everything = Selector::default();
            let watched = client
                .watch(Resource::Nodes, &everything, WatchFrom::Version("1"), Duration::from_secs(1))
                .await
                .unwrap_err();
            assert_eq!(pause(&watched), (expected.0, expected.1.to_owned()));
        }
        let fine = answers(200, "3", "text/plain", "{}").send(Request::get(Resource::Nodes)).await;
        assert_eq!(fine.unwrap(), json!({}));
    }
}
