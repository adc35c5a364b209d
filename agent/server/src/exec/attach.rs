//! Attaches a client to the streams of a container's own process.
//!
//! A container with a terminal has its input and its live output in an [`AttachPoint`]. A container without one may
//! have its input there, and its output is followed in its log, line by line.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Container;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::streams::{Activity, Incoming, Outgoing, pump, send};
use super::{ExecLookupError, ExecTarget};
use crate::logs::{LogTarget, finished};
use limpet_containerd::attach::{AttachPoint, AttachedStreams};
use limpet_containerd::client::Client;
use limpet_containerd::exec::ExecControl;
use limpet_containerd::log::{LogStream, ReadOptions, open};
use limpet_core::status::observed::Observed;
use limpet_wire::command::{Channel, Streams, exit_status, failure_status};
use limpet_wire::idle::IdleTimeout;

#[derive(Clone)]
pub struct AttachState {
    pub client: Client,
    /// The directory of containers' terminals.
    pub attach_dir: PathBuf,
    pub observed: Observed,
    /// `streamingConnectionIdleTimeout`.
    pub idle: IdleTimeout,
    /// Cancelled when the agent stops: clients are then disconnected.
    pub stop: CancellationToken,
}

/// A running container to attach to.
pub(super) struct Attachment {
    control: ExecControl,
    output: Output,
}

enum Output {
    Terminal(AttachPoint),
    /// Its log, and a signal of its exit.
    Log(PathBuf, watch::Receiver<bool>, Option<Input>),
}

/// The input of a container without a terminal.
struct Input {
    point: AttachPoint,
    /// `stdinOnce`: the input is closed for good when its first client ends it or disconnects.
    once: bool,
}

impl AttachState {
    /// Looks up a running container.
    ///
    /// # Errors
    ///
    /// The pod does not exist, or the container is not running.
    pub(super) fn attachment(&self, target: &ExecTarget) -> Result<Attachment, ExecLookupError> {
        let pods = self.observed.load();
        let pod = target.find(&pods)?;
        let container = pod.containers.get(&target.container).filter(|container| container.pid.is_some());
        let container = container.ok_or_else(|| ExecLookupError::NotRunning(target.container.clone()))?;
        let spec = pod.record.container(&target.container);
        let asks = |field: fn(&Container) -> Option<bool>| spec.and_then(field) == Some(true);
        let point = AttachPoint::new(&self.attach_dir, &container.id);
        let output = match asks(|spec| spec.tty) {
            true => Output::Terminal(point),
            false => {
                let input = asks(|spec| spec.stdin).then(|| Input { point, once: asks(|spec| spec.stdin_once) });
                let log = LogTarget { pod: target.pod.clone(), container: target.container.clone(), previous: false };
                let path = container.log_path.join(format!("{}.log", container.restart_count));
                Output::Log(path, finished(self.observed.clone(), log, container.id.clone()), input)
            }
        };
        Ok(Attachment { control: ExecControl::of_container(&self.client, &container.id), output })
    }
}

impl Attachment {
    /// Serves a client. Returns its status, or `None` if it has disconnected.
    pub(super) async fn serve(
        self,
        client: impl Stream<Item = Incoming> + Unpin,
        streams: Streams,
        messages: &mpsc::Sender<Outgoing>,
    ) -> Option<Vec<u8>> {
        match self.output {
            Output::Terminal(point) => match point.open(streams.stdin).await {
                Ok(AttachedStreams { stdin, output }) => {
                    let activity = Activity::default();
                    tokio::select! {
                        () = pump(output, Channel::Stdout, streams.stdout, messages, &activity) => Some(exit_status(0)),
                        left = receive(client, stdin, &self.control) => left.then(|| exit_status(0)),
                    }
                }
                Err(error) => Some(failure_status(&format!("error attaching to container: {error}"))),
            },
            Output::Log(path, finished, input) => {
                let input = input.filter(|_| streams.stdin);
                let stdin = match input.as_ref().map(|input| input.point.open_input()).transpose() {
                    Ok(stdin) => stdin.flatten(),
                    Err(error) => return Some(failure_status(&format!("error attaching to container: {error}"))),
                };
                // Both are open before the client's first bytes are passed on, so the client sees the container's
                // response to them.
                let follow = |stream, wanted| follow(&path, &finished, stream, wanted);
                let (stdout, stderr) =
                    tokio::join!(follow(LogStream::Stdout, streams.stdout), follow(LogStream::Stderr, streams.stderr));
                let stdout = send_all(stdout, Channel::Stdout, messages);
                let stderr = send_all(stderr, Channel::Stderr, messages);
                let once = input.filter(|input| input.once && stdin.is_some());
                tokio::select! {
                    _ = async { tokio::join!(stdout, stderr) } => Some(exit_status(0)),
                    left = feed(client, stdin, once, &self.control) => left.then(|| exit_status(0)),
                }
            }
        }
    }
}

/// Passes on the client's input and terminal sizes. Returns true if the client has ended its input, which detaches
/// it, and false if it has disconnected.
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
            // The container has no input.
            (Incoming::Stdin(_) | Incoming::StdinEnd, None) => {}
        }
    }
    false
}

/// Like [`receive`], for a container whose input ends with its first client. That client stays attached after it has
/// ended the input, to see the remaining output, until it disconnects.
async fn feed(
    mut client: impl Stream<Item = Incoming> + Unpin,
    stdin: Option<Sender>,
    once: Option<Input>,
    control: &ExecControl,
) -> bool {
    let left = receive(&mut client, stdin, control).await;
    let Some(input) = once else { return left };
    input.point.end_input();
    if let Err(error) = control.close_stdin().await {
        tracing::warn!(%error, "closing a container's input failed");
    }
    if left {
        while client.next().await.is_some() {}
    }
    false
}

/// Follows a stream's log from now on until the container has exited; `None` if the client did not request the
/// stream, or there is no log.
async fn follow(
    path: &Path,
    finished: &watch::Receiver<bool>,
    stream: LogStream,
    wanted: bool,
) -> Option<impl Stream<Item = io::Result<Bytes>> + use<>> {
    if !wanted {
        return None;
    }
    let options = ReadOptions { follow: true, tail_lines: Some(0), stream: Some(stream), ..ReadOptions::default() };
    open(path.to_owned(), options, finished.clone()).await.ok()
}

/// Sends a stream's lines to its end.
async fn send_all(
    lines: Option<impl Stream<Item = io::Result<Bytes>>>,
    channel: Channel,
    messages: &mpsc::Sender<Outgoing>,
) {
    let Some(lines) = lines else { return };
    let mut lines = pin!(lines);
    while let Some(Ok(lines)) = lines.next().await {
        send(messages, channel, lines).await;
    }
}
