//! An HTTP server on loopback with scripted responses, byte by byte, which records its requests.

use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// A request: its head, and the client's certificate.
#[derive(Debug, Clone)]
pub(super) struct RecordedRequest {
    pub(super) head: String,
    pub(super) certificate: Option<Vec<u8>>,
}

impl RecordedRequest {
    /// The value of a header, if it was sent.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        self.head.lines().find(line).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

/// How the server answers one request.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// These bytes, then the connection is closed.
    Bytes(Vec<u8>),
    /// These bytes, then one more every few milliseconds, for ever.
    Drip(Vec<u8>),
    /// These bytes, and then the connection stays open without any more.
    Silence(Vec<u8>),
}

impl Reply {
    /// A complete response with additional header lines.
    pub(super) fn new(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n", body.len());
        Self::Bytes([head.as_bytes(), body].concat())
    }

    pub(super) fn ok(body: impl AsRef<[u8]>) -> Self {
        Self::new("200 OK", "", body)
    }
}

type Script = Box<dyn FnMut(&RecordedRequest) -> Reply + Send>;

struct Shared {
    script: Mutex<Script>,
    requests: Mutex<Vec<RecordedRequest>>,
    tls: Mutex<Option<Arc<ServerConfig>>>,
}

/// The server; dropping it closes its port.
pub(super) struct Server {
    pub(super) port: u16,
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Shut down, not only closed: a child that another test is starting may have inherited it.
        rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).unwrap();
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start(script: impl FnMut(&RecordedRequest) -> Reply + Send + 'static) -> Self {
        Self::start_at(0, None, script).await
    }

    pub(super) async fn start_tls(
        config: ServerConfig,
        script: impl FnMut(&RecordedRequest) -> Reply + Send + 'static,
    ) -> Self {
        Self::start_at(0, Some(Arc::new(config)), script).await
    }

    pub(super) async fn start_at(
        port: u16,
        tls: Option<Arc<ServerConfig>>,
        script: impl FnMut(&RecordedRequest) -> Reply + Send + 'static,
    ) -> Self {
        let listener = Arc::new(TcpListener::bind(("127.0.0.1", port)).await.unwrap());
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(Shared { script: Mutex::new(Box::new(script)), requests: Mutex::default(), tls: Mutex::new(tls) });
        let task = tokio::spawn(accept(Arc::clone(&listener), Arc::clone(&shared)));
        Self { port, shared, listener, task }
    }

    /// Responds this way from now on.
    pub(super) fn script(&self, script: impl FnMut(&RecordedRequest) -> Reply + Send + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
    }

    /// Uses this TLS configuration from now on.
    pub(super) fn identity(&self, config: ServerConfig) {
        *self.shared.tls.lock().unwrap() = Some(Arc::new(config));
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

async fn accept(listener: Arc<TcpListener>, shared: Arc<Shared>) {
    // Connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let tls = shared.tls.lock().unwrap().clone();
            let Some(tls) = tls else { return serve(stream, None, &shared).await };
            // Some tests let the client abort the handshake.
            let stream = TlsAcceptor::from(tls).accept(stream).await?;
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate =
                certificates.and_then(<[CertificateDer<'_>]>::first).map(|certificate| certificate.to_vec());
            serve(stream, certificate, &shared).await
        });
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: Option<Vec<u8>>,
    shared: &Shared,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let asked = RecordedRequest { head: String::from_utf8_lossy(&head).into_owned(), certificate };
    shared.requests.lock().unwrap().push(asked.clone());
    let reply = (shared.script.lock().unwrap())(&asked);
    match reply {
        Reply::Bytes(bytes) => stream.write_all(&bytes).await?,
        Reply::Silence(bytes) => {
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            std::future::pending::<()>().await;
        }
        Reply::Drip(bytes) => {
            stream.write_all(&bytes).await?;
            let mut every = tokio::time::interval(std::time::Duration::from_millis(5));
            loop {
                every.tick().await;
                stream.write_all(b"#").await?;
                stream.flush().await?;
            }
        }
    }
    stream.flush().await?;
    stream.shutdown().await
}
