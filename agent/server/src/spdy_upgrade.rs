//! The HTTP handshake of SPDY: upgrades a request to a connection with a protocol that both sides support.

use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use limpet_wire::spdy::{PROTOCOL, SPDY};

/// The header that lists the server's protocols if it supports none of the client's.
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// A request that can be upgraded.
pub(crate) struct SpdyUpgrade {
    on: OnUpgrade,
    protocol: &'static str,
}

/// Whether the request is an upgrade to SPDY.
pub(crate) fn is_requested(headers: &HeaderMap) -> bool {
    let names = |name, value: &str| words(headers, name).any(|word| word.eq_ignore_ascii_case(value));
    names(CONNECTION, "upgrade") && names(UPGRADE, SPDY)
}

/// Chooses the first of the client's protocols that is `supported`, or returns kubelet's error response.
pub(crate) fn negotiate(request: &mut Request, supported: &[&'static str]) -> Result<SpdyUpgrade, Box<Response>> {
    let refused = |status: StatusCode, message: String| Box::new((status, format!("{message}\n")).into_response());
    let offered: Vec<&str> = words(request.headers(), PROTOCOL).collect();
    if offered.is_empty() {
        let message = format!("unable to upgrade: the request has no header {PROTOCOL}");
        return Err(refused(StatusCode::BAD_REQUEST, message));
    }
    let Some(protocol) = offered.iter().find_map(|offer| supported.iter().find(|known| *known == offer).copied())
    else {
        let message = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {supported:?}"
        );
        let mut response = refused(StatusCode::FORBIDDEN, message);
        for protocol in supported {
            response.headers_mut().append(ACCEPTED, HeaderValue::from_static(protocol));
        }
        return Err(response);
    };
    match request.extensions_mut().remove::<OnUpgrade>() {
        Some(on) => Ok(SpdyUpgrade { on, protocol }),
        None => {
            let message = "unable to upgrade: this connection carries other requests".to_owned();
            Err(refused(StatusCode::BAD_REQUEST, message))
        }
    }
}

impl SpdyUpgrade {
    /// The chosen protocol.
    pub(crate) fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// The response; `serve` gets the connection after it.
    pub(crate) fn on_upgrade<S, F>(self, serve: S) -> Response
    where
        S: FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(async move {
            match self.on.await {
                Ok(upgraded) => serve(TokioIo::new(upgraded)).await,
                Err(error) => tracing::debug!(%error, "a client closed its connection before the upgrade to SPDY"),
            }
        });
        let headers = [
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (UPGRADE, HeaderValue::from_static(SPDY)),
            (PROTOCOL, HeaderValue::from_static(self.protocol)),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}

/// The words of a header, which may occur several times and separate its words by commas.
fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn a_request_for_spdy_is_known_by_both_headers() {
        let table = [
            (&[("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")][..], true),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "spdy/3.1")], true),
            (&[("Upgrade", "SPDY/3.1")], false),
            (&[("Connection", "Upgrade"), ("Upgrade", "websocket")], false),
        ];
        for (headers, expected) in table {
            assert_eq!(is_requested(request(headers).headers()), expected, "{headers:?}");
        }
    }

    #[test]
    fn without_a_common_protocol_nothing_is_upgraded() {
        let table = [
            (&[][..], StatusCode::BAD_REQUEST),
            (&[("X-Stream-Protocol-Version", "v9"), ("X-Stream-Protocol-Version", "v8, v7")], StatusCode::FORBIDDEN),
            (&[("X-Stream-Protocol-Version", "v9, v4")], StatusCode::BAD_REQUEST),
        ];
        for (headers, status) in table {
            let Err(response) = negotiate(&mut request(headers), &["v5", "v4"]) else { panic!("{headers:?}") };
            assert_eq!(response.status(), status, "{headers:?}");
            let accepted: Vec<_> = response.headers().get_all(ACCEPTED).iter().collect();
            assert_eq!(accepted.len(), if status == StatusCode::FORBIDDEN { 2 } else { 0 }, "{headers:?}");
        }
    }
}
