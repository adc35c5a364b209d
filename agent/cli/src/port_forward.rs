//! `limpet port-forward`: listens on ports of this machine and forwards each connection to a port of a pod.

mod ports;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use clap_complete::engine::ArgValueCompleter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::ports::{Address, Forwarding, PortArgument};
use super::completion;
use super::error::CliError;
use super::screen::printable_lines;
use super::target::find;
use limpet_wire::pods::{PodDocument, PodNames};
use limpet_wire::port_forward::{PORT, PROTOCOL, REQUEST_ID, STREAM_TYPE};
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::spdy::connection::{Ended, Handle, Role, Stream, connection};
use limpet_wire::spdy::frame::Status;
use limpet_wire::spdy::headers::Headers;
use limpet_wire::spdy::tcp;

/// `limpet port-forward`.
#[derive(Debug, clap::Args)]
pub struct PortForwardArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// The ports: of this machine, if it is another one, and of the pod, by number or name; `:80` takes any free port
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    ports: Vec<PortArgument>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// The addresses to listen on: localhost, or IP addresses
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    address: Vec<Address>,
}

/// Forwards until the pod or the agent ends; returns only with an error.
///
/// # Errors
/// When the agent cannot be reached, no port can be listened on, or the pod has ended.
pub(super) async fn run(client: &SocketClient, args: PortForwardArgs) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let ports = resolve(client, &pod, &args.ports).await?;
    let path = format!("/portForward/{}/{}", pod.namespace, pod.name);
    let io = client.upgrade_spdy(&path, PROTOCOL).await?;
    // The agent decides how long it may be idle.
    let (streams, driver) = connection(io, Role::Client, None);
    let forwarder = Arc::new(Forwarder { streams, requests: AtomicU32::new(0) });
    let mut accepting = JoinSet::new();
    for forwarding in ports {
        for listener in listen(&args.address, forwarding).await? {
            accepting.spawn(Arc::clone(&forwarder).accept(listener, forwarding.remote));
        }
    }
    driver.await;
    Err(ClientError::Refused { status: 500, message: "lost connection to pod".to_owned() }.into())
}

/// The ports as numbers; names are those of the pod's containers.
async fn resolve(
    client: &SocketClient,
    pod: &PodNames,
    arguments: &[PortArgument],
) -> Result<Vec<Forwarding>, CliError> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
    let manifest = match arguments.iter().any(PortArgument::is_named) {
        true => Some(client.get_json::<PodDocument>(&path).await?.0),
        false => None,
    };
    arguments.iter().map(|argument| argument.resolve(manifest.as_ref()).map_err(CliError::Target)).collect()
}

/// Listens on each address; of those that `localhost` resolves to, one is enough.
async fn listen(addresses: &[Address], forwarding: Forwarding) -> Result<Vec<TcpListener>, CliError> {
    let mut listeners = Vec::new();
    let mut local = forwarding.local;
    for address in addresses {
        let (mut failed, mut listens) = (None, false);
        for ip in address.ips() {
            match TcpListener::bind((ip, local)).await {
                Ok(listener) => {
                    let address = listener.local_addr()?;
                    // The free port that one address got is used for all.
                    local = address.port();
                    writeln!(std::io::stdout(), "Forwarding from {address} -> {}", forwarding.remote)?;
                    listeners.push(listener);
                    listens = true;
                }
                Err(error) => failed = Some((ip, error)),
            }
        }
        if let Some((ip, source)) = failed.filter(|_| !listens) {
            let what = format!("listen on {}", SocketAddr::new(ip, local));
            return Err(CliError::System { what, source });
        }
    }
    Ok(listeners)
}

/// The connection to the agent, for all ports.
struct Forwarder {
    streams: Handle,
    requests: AtomicU32,
}

impl Forwarder {
    /// Forwards each connection to `listener`.
    async fn accept(self: Arc<Self>, listener: TcpListener, remote: u16) {
        let mut connections = JoinSet::new();
        let local = listener.local_addr().map_or(0, |address| address.port());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) => {
                    print_line(format_args!("Handling connection for {local}"));
                    connections.spawn(Arc::clone(&self).forward(stream, local, remote));
                }
                Err(error) => return complain(format_args!("accept a connection for {local}: {error}")),
            }
        }
    }

    async fn forward(self: Arc<Self>, stream: TcpStream, local: u16, remote: u16) {
        let message = match self.pair(remote).await {
            Ok((error, data)) => exchange(stream, error, data).await,
            Err(Ended) => "too many connections at once, or the connection to the agent has ended".to_owned(),
        };
        if !message.is_empty() {
            complain(format_args!("an error occurred forwarding {local} -> {remote}: {message}"));
        }
    }

    /// Opens the two streams of a connection.
    async fn pair(&self, remote: u16) -> Result<(Stream, Stream), Ended> {
        let (port, request) = (remote.to_string(), self.requests.fetch_add(1, Ordering::Relaxed).to_string());
        let headers = |kind| Headers::new(&[(STREAM_TYPE, kind), (PORT, &port), (REQUEST_ID, &request)]);
        let error = self.streams.open(headers("error")).await?;
        error.output.finish().await;
        Ok((error, self.streams.open(headers("data")).await?))
    }
}

/// Copies in both directions until the pod sends no more, or the local reader has gone; returns the agent's message.
async fn exchange(stream: TcpStream, mut error: Stream, data: Stream) -> String {
    let (from, to) = stream.into_split();
    let pieces = AtomicU64::new(0);
    let sent = async {
        // The only error is that the connection to the agent has ended, which also ends receiving.
        let _ = tcp::send(&from, &data.output, &pieces).await;
        data.output.finish().await;
        std::future::pending().await
    };
    tokio::select! {
        () = tcp::receive(data.input, to) => {}
        () = data.reset.cancelled() => {}
        () = sent => {}
    }
    data.output.reset(Status::Cancel).await;
    let mut message = Vec::new();
    while let Some(piece) = error.input.read().await {
        message.extend_from_slice(&piece);
    }
    String::from_utf8_lossy(&message).into_owned()
}

fn print_line(line: std::fmt::Arguments<'_>) {
    // Connections are forwarded even if stdout cannot be written.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn complain(line: std::fmt::Arguments<'_>) {
    // Nothing can be done if stderr cannot be written.
    let _ = writeln!(std::io::stderr().lock(), "error: {}", printable_lines(&line.to_string()));
}

impl Address {
    fn ips(self) -> Vec<IpAddr> {
        match self {
            Self::Localhost => vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])],
            Self::Ip(ip) => vec![ip],
        }
    }
}
