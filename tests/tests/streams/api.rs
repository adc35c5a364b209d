//! kubelet's API by TLS, with access to the TCP connections below.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use limpet_tests::claim::Port;
use limpet_tests::websocket::{COMMANDS, WebSocket};
use limpet_tests::{TestNode, wait};
use rustix::net::sockopt::set_socket_linger;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The protocol of forwarded ports as channels.
const PORTS: &str = "v4.channel.k8s.io";
/// How long a client waits for data.
const READ_TIMEOUT: Duration = Duration::from_secs(180);

/// A node's API.
pub(crate) struct Api {
    port: Port,
    config: Arc<ClientConfig>,
}

/// A TCP connection below the stream of a client.
pub(crate) struct Below(TcpStream);

impl Below {
    /// Resets the connection once its stream is dropped.
    pub(crate) fn reset(self) -> Result<()> {
        Ok(set_socket_linger(&self.0, Some(Duration::ZERO))?)
    }

    /// The client's port.
    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }
}

impl Api {
    /// Starts the node's agent with an API for every caller. `connect` connects to it.
    pub(crate) fn start(node: &mut TestNode, connect: impl Fn(u16) -> Result<TcpStream>) -> Result<Self> {
        let port = Port::claim()?;
        let settings = format!(
            "address: 127.0.0.1\nport: {}\nauthorization: {{mode: AlwaysAllow}}\nauthentication: {{anonymous: {{enabled: true}}}}",
            port.number
        );
        node.agent.reconfigure(|kept| kept.kubelet.push(settings))?;
        node.agent.start()?;
        // The agent creates its certificate at the first connection.
        let certificate = node.agent.settings().root().join("pki/kubelet.crt");
        let certificate = wait::until(wait::SOON, "the certificate of kubelet's API", || {
            connect(port.number).ok()?;
            CertificateDer::from_pem_file(&certificate).ok()
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(Self { port, config: Arc::new(config.with_root_certificates(roots).with_no_client_auth()) })
    }

    /// The port of the API.
    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    /// A TLS connection over that TCP connection.
    pub(crate) fn over(&self, tcp: TcpStream) -> Result<(StreamOwned<ClientConnection, TcpStream>, Below)> {
        tcp.set_read_timeout(Some(READ_TIMEOUT))?;
        let below = Below(tcp.try_clone()?);
        let client = ClientConnection::new(Arc::clone(&self.config), ServerName::try_from("localhost")?)?;
        Ok((StreamOwned::new(client, tcp), below))
    }

    /// A command's stream.
    pub(crate) fn command(&self, tcp: TcpStream, path: &str) -> Result<(WebSocket, Below)> {
        let (stream, below) = self.over(tcp)?;
        Ok((WebSocket::over(stream, path, COMMANDS).context("a command")?, below))
    }

    /// A client that forwards ports.
    pub(crate) fn forward(&self, tcp: TcpStream, path: &str) -> Result<(WebSocket, Below)> {
        let (stream, below) = self.over(tcp)?;
        Ok((WebSocket::over(stream, path, PORTS).context("a forwarded port")?, below))
    }
}
