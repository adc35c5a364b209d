//! What probes and hooks do in a container or with it: run a command, send a GET, open a connection.
//!
//! An action has no time limit of its own; the caller sets the deadline with [`within`]. Dropping it ends it,
//! including the process of a command. What it reads is bounded by [`MAX_OUTPUT`].

mod grpc;
mod http;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use limpet_containerd::client::Client;
use limpet_containerd::exec::{self, CappedOutput, ExecError, ExecRequest};
use limpet_core::state::PodState;
use limpet_model::container::ContainerId;
use limpet_model::sandbox::in_order_of_node;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

pub use self::grpc::{HealthFailure, check_health};
pub use self::http::{Get, GetFailure, HttpGetter, Purpose};
use super::ContainerdExecutor;

/// How much of a command's output or of an answer's body is kept, as in kubelet; the rest is read and dropped.
pub const MAX_OUTPUT: usize = 10 << 10;
/// The version of Kubernetes in `User-Agent`, as in kubelet's clients.
const KUBERNETES: &str = "1.37";

/// A command that has exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// What it wrote to stdout and stderr.
    pub output: String,
}

/// Why an action had no result.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// The time set for it has passed.
    #[error("no result before the timeout")]
    TimedOut,
    /// The command was not run, or its exit is not known.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The GET brought no answer.
    #[error(transparent)]
    Get(#[from] GetFailure),
    /// The server is not healthy.
    #[error(transparent)]
    Health(#[from] HealthFailure),
    /// The connection was not opened.
    #[error("dial tcp {address}: {source}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    /// The container has no port of that name.
    #[error("the container has no port named {0:?}")]
    NoPort(String),
    /// The number is not that of a port.
    #[error("{0} is not a port")]
    InvalidPort(i32),
    /// The pod has no address to connect to.
    #[error("the pod has no address")]
    NoAddress,
}

/// The result of `action`, or [`HandlerError::TimedOut`] at `deadline`.
///
/// # Errors
/// Those of `action`, and the deadline.
pub async fn within<T, E>(
    deadline: Option<Instant>,
    action: impl Future<Output = Result<T, E>>,
) -> Result<T, HandlerError>
where
    HandlerError: From<E>,
{
    match deadline {
        None => Ok(action.await?),
        Some(deadline) => Ok(timeout_at(deadline, action).await.map_err(|_| HandlerError::TimedOut)??),
    }
}

impl ContainerdExecutor {
    /// Runs `command` in a running container.
    ///
    /// # Errors
    ///
    /// It was not run. A command that fails is a result.
    pub async fn exec(&self, id: &ContainerId, command: &[String]) -> Result<Executed, ExecError> {
        run_command(&self.client, &self.settings.exec_dir(), id, command).await
    }

    /// The same, but the command continues when this is dropped. It ends with its container, which is about to be
    /// stopped.
    ///
    /// # Errors
    ///
    /// It was not run. A command that fails is a result.
    pub async fn exec_with_container(&self, id: &ContainerId, command: &[String]) -> Result<Executed, ExecError> {
        let (client, fifo_dir) = (self.client.clone(), self.settings.exec_dir());
        let (id, command) = (id.clone(), command.to_vec());
        let run = tokio::spawn(async move { run_command(&client, &fifo_dir, &id, &command).await });
        run.await.unwrap_or(Err(ExecError::Ended))
    }

    /// The target of a probe or hook without `host`: the pod's first address, or with `hostNetwork` the node's.
    pub fn action_address(&self, pod: &PodState) -> Option<IpAddr> {
        let node = self.node_network.borrow().addresses;
        match pod.record.host_network() {
            // A node without a network can reach only itself.
            true => Some(node.iter().next().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
            false => in_order_of_node(pod.addresses(), node).first().copied(),
        }
    }
}

/// Runs `command` in the container called `id` until it exits.
async fn run_command(
    client: &Client,
    fifo_dir: &Path,
    id: &ContainerId,
    command: &[String],
) -> Result<Executed, ExecError> {
    let request =
        ExecRequest { container_id: id.as_str().to_owned(), command: command.to_vec(), tty: false, stdin: false };
    let session = exec::start(client, fifo_dir, request).await?;
    let output = CappedOutput::new(MAX_OUTPUT);
    let code = session.finish(&output, &output).await?;
    Ok(Executed { code, output: String::from_utf8_lossy(&output.into_bytes()).into_owned() })
}

/// Opens a connection to `socket` and closes it.
///
/// # Errors
///
/// It is not accepted.
pub async fn tcp_connect(
    socket: &TCPSocketAction,
    container: &Container,
    pod: Option<IpAddr>,
) -> Result<(), HandlerError> {
    let host = host(socket.host.as_deref(), pod)?;
    let port = port(&socket.port, container)?;
    let connected = connect(&host, port).await;
    connected.map(drop).map_err(|source| HandlerError::Connect { address: authority(&host, port), source })
}

/// The host named in an action, or else the pod's address.
fn host(named: Option<&str>, pod: Option<IpAddr>) -> Result<String, HandlerError> {
    match named.filter(|host| !host.is_empty()) {
        Some(host) => Ok(host.to_owned()),
        None => pod.map(|address| address.to_string()).ok_or(HandlerError::NoAddress),
    }
}

/// The number of a port given by number, or by the name the container has for it.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, HandlerError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_ref() == Some(name));
            match (named, name.parse::<i32>()) {
                (Some(port), _) => port.container_port,
                (None, Ok(number)) => number,
                (None, Err(_)) => return Err(HandlerError::NoPort(name.clone())),
            }
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(HandlerError::InvalidPort(number))
}

/// Connects to the first of the host's addresses that accepts.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    match host.parse::<IpAddr>() {
        Ok(address) => TcpStream::connect(SocketAddr::new(address, port)).await,
        Err(_) => TcpStream::connect((host, port)).await,
    }
}

/// Host and port as in a URL.
pub fn authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
