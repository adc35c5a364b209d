//! The client of the local socket: HTTP/1.1 over a Unix stream, one connection per request.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt as _;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::http::request;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio_util::io::ReaderStream;

use crate::spdy::{PROTOCOL, SPDY};

/// The limit of a response that is read completely, in bytes: enough for 10,000 pods.
const MAX_RESPONSE: usize = 256 << 20;
/// The limit of a stream's line in bytes.
const MAX_LINE: usize = 4 << 20;
/// The limit of an error page that is shown, in bytes.
const MAX_MESSAGE: usize = 256 << 10;

/// Bytes of a file that are sent at once.
const PIECE: usize = 256 << 10;

/// Why a request to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error("limpet is not running (no socket at {}): start it with: systemctl start limpet", socket.display())]
    NotRunning { socket: PathBuf },
    /// The socket exists, but the user may not use it.
    #[error("not allowed to talk to limpet at {}: run this as root", socket.display())]
    Forbidden { socket: PathBuf },
    /// The connection failed.
    #[error("connection to limpet at {} failed: {message}", socket.display())]
    Connection { socket: PathBuf, message: String },
    /// The agent responded with an error, whose message this is.
    #[error("{message}")]
    Refused { status: u16, message: String },
    /// The response cannot be read.
    #[error(
        "limpet's response to {path} cannot be read: {message}; do the agent and this command have the same version?"
    )]
    Answer { path: String, message: String },
    /// The request cannot be encoded.
    #[error("{0}")]
    Request(String),
}

/// A client of the agent's socket. Needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct SocketClient {
    socket: PathBuf,
}

impl SocketClient {
    /// A client of the agent at `socket`. It does not connect yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A connected stream, for other protocols.
    pub async fn connect(&self) -> Result<UnixStream, ClientError> {
        let socket = || self.socket.clone();
        UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning { socket: socket() },
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { socket: socket() },
            _ => ClientError::Connection { socket: socket(), message: error.to_string() },
        })
    }

    /// Requests `path` (with its query) and returns any response, errors included.
    pub async fn get(&self, path: &str) -> Result<Response<Incoming>, ClientError> {
        self.send(Request::get(path), &[], Bytes::new()).await
    }

    /// PUTs a JSON document to `path`. A status other than 2xx is [`ClientError::Refused`].
    pub async fn put(&self, path: &str, document: Vec<u8>) -> Result<Response<Incoming>, ClientError> {
        let headers = [(CONTENT_TYPE, "application/json")];
        self.accepted(self.send(Request::put(path), &headers, document.into()).await?).await
    }

    /// POSTs a JSON document to `path` and reads the response. A status other than 2xx is [`ClientError::Refused`].
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        document: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = self.whole(path, self.post(path, document).await?).await?;
        serde_json::from_slice(&body).map_err(|error| bad_response(path, &error))
    }

    /// POSTs a file to `path`, from its present position on, as it is read. A status other than 2xx is
    /// [`ClientError::Refused`].
    pub async fn post_file<T: DeserializeOwned>(&self, path: &str, file: tokio::fs::File) -> Result<T, ClientError> {
        let pieces = ReaderStream::with_capacity(file, PIECE).map_ok(Frame::data);
        let headers = [(CONTENT_TYPE, "application/octet-stream")];
        let response = self.send_body(Request::post(path), &headers, StreamBody::new(pieces)).await?;
        let body = self.whole(path, response).await?;
        serde_json::from_slice(&body).map_err(|error| bad_response(path, &error))
    }

    async fn post(&self, path: &str, document: &impl Serialize) -> Result<Response<Incoming>, ClientError> {
        let document = serde_json::to_vec(document).map_err(|error| ClientError::Request(error.to_string()))?;
        self.send(Request::post(path), &[(CONTENT_TYPE, "application/json")], document.into()).await
    }

    /// DELETEs `path`. A status other than 2xx is [`ClientError::Refused`].
    pub async fn delete(&self, path: &str) -> Result<Response<Incoming>, ClientError> {
        self.accepted(self.send(Request::delete(path), &[], Bytes::new()).await?).await
    }

    /// The complete response as text. A status other than 2xx is [`ClientError::Refused`].
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let body = self.get_bytes(path).await?;
        String::from_utf8(body.into()).map_err(|error| bad_response(path, &error))
    }

    /// The complete response as JSON. A status other than 2xx is [`ClientError::Refused`].
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.get_bytes(path).await?;
        serde_json::from_slice(&body).map_err(|error| bad_response(path, &error))
    }

    /// A stream of JSON documents, one per line.
    pub async fn lines<T: DeserializeOwned>(&self, path: &str) -> Result<JsonLines<T>, ClientError> {
        self.lines_of(path, self.get(path).await?).await
    }

    /// POSTs a JSON document to `path`. The response is a stream as in [`Self::lines`].
    pub async fn post_lines<T: DeserializeOwned>(
        &self,
        path: &str,
        document: &impl Serialize,
    ) -> Result<JsonLines<T>, ClientError> {
        self.lines_of(path, self.post(path, document).await?).await
    }

    async fn lines_of<T: DeserializeOwned>(
        &self,
        path: &str,
        response: Response<Incoming>,
    ) -> Result<JsonLines<T>, ClientError> {
        let body = self.accepted(response).await?.into_body();
        Ok(JsonLines { client: self.clone(), path: path.to_owned(), body, pending: Vec::new(), documents: PhantomData })
    }

    /// Requests `path` as a WebSocket with this subprotocol. Returns the raw stream after the handshake.
    pub async fn upgrade(&self, path: &str, subprotocol: &str) -> Result<TokioIo<Upgraded>, ClientError> {
        let key = tokio_tungstenite::tungstenite::handshake::client::generate_key();
        let headers = [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, &key),
            (SEC_WEBSOCKET_PROTOCOL, subprotocol),
        ];
        self.switched(path, self.send(Request::get(path), &headers, Bytes::new()).await?).await
    }

    /// POSTs to `path` for a SPDY connection with this protocol. Returns the raw stream after the handshake.
    pub async fn upgrade_spdy(&self, path: &str, protocol: &str) -> Result<TokioIo<Upgraded>, ClientError> {
        let headers = [(CONNECTION, "Upgrade"), (UPGRADE, SPDY), (PROTOCOL, protocol)];
        self.switched(path, self.send(Request::post(path), &headers, Bytes::new()).await?).await
    }

    async fn switched(&self, path: &str, response: Response<Incoming>) -> Result<TokioIo<Upgraded>, ClientError> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return match self.accepted(response).await {
                Ok(_) => Err(bad_response(path, &"no upgrade")),
                Err(refused) => Err(refused),
            };
        }
        hyper::upgrade::on(response).await.map(TokioIo::new).map_err(|error| self.broken(&error))
    }

    async fn send(
        &self,
        request: request::Builder,
        headers: &[(HeaderName, &str)],
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        self.send_body(request, headers, Full::new(body)).await
    }

    async fn send_body<B>(
        &self,
        request: request::Builder,
        headers: &[(HeaderName, &str)],
        body: B,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let stream = self.connect().await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // Completes with the response's body, which reports any error.
        tokio::spawn(connection.with_upgrades());
        let mut request = request.header(HOST, "limpet");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(body).map_err(|error| ClientError::Request(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        self.whole(path, self.get(path).await?).await
    }

    async fn whole(&self, path: &str, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let body = self.accepted(response).await?.into_body();
        let whole = http_body_util::Limited::new(body, MAX_RESPONSE).collect().await;
        whole.map(http_body_util::Collected::to_bytes).map_err(|error| bad_response(path, &error))
    }

    /// The response, if its status is 2xx; otherwise the agent's error message.
    pub async fn accepted(&self, response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let page = http_body_util::Limited::new(response.into_body(), MAX_MESSAGE).collect().await;
        let text = page.map(|page| String::from_utf8_lossy(&page.to_bytes()).trim().to_owned()).unwrap_or_default();
        // Errors of the apiserver routes are `Status` documents with a message.
        let status_message = serde_json::from_str::<Status>(&text).ok().and_then(|status| status.message);
        let message = status_message.unwrap_or(if text.is_empty() { status.to_string() } else { text });
        Err(ClientError::Refused { status: status.as_u16(), message })
    }

    fn broken(&self, error: &hyper::Error) -> ClientError {
        ClientError::Connection { socket: self.socket.clone(), message: error.to_string() }
    }
}

fn bad_response(path: &str, error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Answer { path: path.to_owned(), message: error.to_string() }
}

/// Documents as they arrive, one per line.
#[derive(Debug)]
pub struct JsonLines<T> {
    client: SocketClient,
    path: String,
    body: Incoming,
    pending: Vec<u8>,
    documents: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> JsonLines<T> {
    /// The next document; `None` once the agent has closed the stream.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let document = serde_json::from_slice(&self.pending[..end]);
                self.pending.drain(..=end);
                return document.map(Some).map_err(|error| bad_response(&self.path, &error));
            }
            if self.pending.len() > MAX_LINE {
                return Err(bad_response(&self.path, &"a line that is too long"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.broken(&error)),
                Some(Ok(frame)) => self.pending.extend(frame.data_ref().into_iter().flatten()),
            }
        }
    }
}
