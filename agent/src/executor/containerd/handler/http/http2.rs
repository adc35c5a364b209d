//! A GET over HTTP/2, for a server that chose it during the TLS handshake. Go's client, with which kubelet probes,
//! offers it to every HTTPS server, and some servers support nothing else. Part of [`super`].

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use h2::RecvStream;
use hyper::header::{CONNECTION, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::{Request, Uri, http};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Exchanged, Get, GetFailure, MAX_HEAD, driven, is_full_with};

/// How the TLS handshake names HTTP/2 (RFC 9113, section 3.2).
pub(super) const ALPN: &[u8] = b"h2";

/// Headers about a single connection, which HTTP/2 forbids (RFC 9113, section 8.2.2).
const OF_A_CONNECTION: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Sends one request over `stream`, reads the answer, and closes it.
pub(super) async fn over<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    get: &Get,
    answered: &AtomicBool,
) -> Result<Exchanged, GetFailure> {
    let failed = |error: h2::Error| get.failed(error.to_string(), false);
    let request = request(get).map_err(|error| get.failed(error.to_string(), false))?;
    let mut client = h2::client::Builder::new();
    client.enable_push(false).max_header_list_size(MAX_HEAD as u32);
    let (sender, connection) = client.handshake::<_, Bytes>(stream).await.map_err(failed)?;
    let answer = async {
        let (response, _) = sender.ready().await?.send_request(request, true)?;
        get.take(response.await?, answered, body).await
    };
    driven(answer, connection).await.map_err(failed)
}

/// The request of `get`. The host is part of the address, and no header is about a connection.
fn request(get: &Get) -> Result<Request<()>, http::Error> {
    let mut request = get.request()?.map(drop);
    let headers = request.headers_mut();
    let host = headers.remove(HOST);
    for name in &OF_A_CONNECTION {
        headers.remove(name);
    }
    let authority = host.as_ref().map_or(&[][..], http::HeaderValue::as_bytes);
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
    *request.uri_mut() = Uri::builder().scheme("https").authority(authority).path_and_query(target).build()?;
    Ok(request)
}

/// The beginning of a body; the rest is not read. It is less than the first window, which is never extended.
async fn body(mut body: RecvStream) -> Result<String, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        if is_full_with(&mut bytes, &data?) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
