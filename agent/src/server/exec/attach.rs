//! The streams of a container's own process, for a client that attaches to it.
//!
//! A container with a terminal has its input and its live output in an [`AttachPoint`]. Another one has no input, and its output is
//! followed in its log, line by line.

use std::path::PathBuf;

use futures_util::{Stream, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::session::{Activity, Incoming, Outgoing, pump, send};
use super::wire::{Channel, Streams, exit_status, failure_status};
use super::{ExecLookupError, ExecTarget};
use crate::server::idle::IdleTimeout;
use crate::server::logs::{LogTarget, finished};
use limpet_containerd::attach::{AttachPoint, Ends};
use limpet_containerd::client::Client;
use limpet_containerd::exec::ExecControl;
use limpet_containerd::log::{LogStream, ReadOptions, read};
use limpet_core::status::observed::Observed;

/// What the route needs.
#[derive(Clone)]
pub struct AttachState {
    /// The connection to containerd.
    pub client: Client,
    /// The directory of containers' terminals.
    pub attach_dir: PathBuf,
    /// The pods, their containers and logs.
    pub observed: Observed,
    /// `streamingConnectionIdleTimeout`.
    pub idle: IdleTimeout,
    /// Cancelled when the agent stops: clients are then disconnected.
    pub stop: CancellationToken,
}

/// A running container, to be attached to.
pub(super) struct Attachment {
    control: ExecControl,
    output: Output,
}

/// Where its output comes from.
enum Output {
    /// Its terminal.
    Terminal(AttachPoint),
    /// Its log, and when it has exited.
    Log(PathBuf, watch::Receiver<bool>),
}

impl AttachState {
    /// Looks up a running container.
    ///
    /// # Errors
    /// There is no such pod, or the container does not run.
    pub(super) fn attachment(&self, target: &ExecTarget) -> Result<Attachment, ExecLookupError> {
        let pods = self.observed.load();
        let pod = target.find(&pods)?;
        let container = pod.containers.get(&target.container).filter(|container| container.pid.is_some());
        let container = container.ok_or_else(|| ExecLookupError::NotRunning(target.container.clone()))?;
        let has_terminal = pod.record.container(&target.container).is_some_and(|spec| spec.tty == Some(true));
        let output = match has_terminal {
            true => Output::Terminal(AttachPoint::new(&self.attach_dir, &container.id)),
            false => {
                let log = LogTarget { pod: target.pod.clone(), container: target.container.clone(), previous: false };
                let path = container.log_path.join(format!("{}.log", container.restart_count));
                Output::Log(path, finished(self.observed.clone(), log, container.id.clone()))
            }
        };
        Ok(Attachment { control: ExecControl::of_container(&self.client, &container.id), output })
    }
}

impl Attachment {
    /// Serves a client; returns its status, or `None` when it has disconnected.
    pub(super) async fn serve(
        self,
        client: impl Stream<Item = Incoming> + Unpin,
        streams: Streams,
        messages: &mpsc::Sender<Outgoing>,
    ) -> Option<Vec<u8>> {
        match self.output {
            Output::Terminal(point) => match point.open(streams.stdin).await {
                Ok(Ends { stdin, output }) => {
                    let activity = Activity::default();
                    tokio::select! {
                        () = pump(output, Channel::Stdout, streams.stdout, messages, &activity) => Some(exit_status(0)),
                        left = receive(client, stdin, &self.control) => left.then(|| exit_status(0)),
                    }
                }
                Err(error) => Some(failure_status(&format!("error attaching to container: {error}"))),
            },
            Output::Log(path, finished) => {
                let follow = |stream, channel, wanted| {
                    follow(path.clone(), finished.clone(), stream, channel, messages.clone(), wanted)
                };
                let stdout = follow(LogStream::Stdout, Channel::Stdout, streams.stdout);
                let stderr = follow(LogStream::Stderr, Channel::Stderr, streams.stderr);
                tokio::select! {
                    _ = async { tokio::join!(stdout, stderr) } => Some(exit_status(0)),
                    _ = receive(client, None, &self.control) => None,
                }
            }
        }
    }
}

/// Passes on the client's input and the sizes of its terminal; returns whether it has ended its input, with which it leaves, or has
/// disconnected.
async fn receive(
    mut client: impl Stream<Item = Incoming> + Unpin,
    mut stdin: Option<Sender>,
    control: &ExecControl,
) -> bool {
    while let Some(message) = client.next().await {
        match (message, &mut stdin) {
            (Incoming::Stdin(data), Some(pipe)) => {
                if pipe.write_all(&data).await.is_err() {
                    stdin = None;
                }
            }
            (Incoming::StdinEnd, Some(_)) => return true,
            (Incoming::Size(width, height), _) => {
                if let Err(error) = control.resize(width, height).await {
                    tracing::debug!(%error, "cannot resize a terminal");
                }
            }
            // It has no input.
            (Incoming::Stdin(_) | Incoming::StdinEnd, None) => {}
        }
    }
    false
}

/// Sends what is added to a stream's log until the container has exited; at once when the client does not want it.
async fn follow(
    path: PathBuf,
    finished: watch::Receiver<bool>,
    stream: LogStream,
    channel: Channel,
    messages: mpsc::Sender<Outgoing>,
    wanted: bool,
) {
    if !wanted {
        return;
    }
    let options = ReadOptions { follow: true, tail_lines: Some(0), stream: Some(stream), ..ReadOptions::default() };
    let mut lines = Box::pin(read(path, options, finished));
    while let Some(Ok(lines)) = lines.next().await {
        send(&messages, channel, lines).await;
    }
}
