//! One client and one process: a command that the client runs, or a container's own process. Connects the process's
//! streams with the client's messages until either side ends. [`super::websocket`] and [`super::spdy`] implement the
//! wire formats.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::attach::Attachment;
use super::protocol::Version;
use super::streams::{Activity, Incoming, Outgoing, pump, receive, send};
use limpet_containerd::client::Client;
use limpet_containerd::exec::{ExecError, ExecRequest, ExecSession, start};
use limpet_wire::command::{Channel, Streams, exit_status, failure_status};
use limpet_wire::idle::IdleTimeout;

/// The most queued messages for a slow client. When the queue is full, the process blocks.
pub(super) const OUTPUT_QUEUE_LEN: usize = 1;
/// How long to wait without output after the process's exit: child processes may have inherited the output and keep
/// it open.
pub(crate) const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// The deadline for a client to receive the last messages.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// One client's session.
pub(super) struct Session {
    pub(super) process: Process,
    pub(super) streams: Streams,
    pub(super) version: Version,
    /// How long the stream may carry no data.
    pub(super) idle: IdleTimeout,
    /// Cancelled when the agent stops.
    pub(super) stop: CancellationToken,
}

/// The process whose streams are connected.
pub(super) enum Process {
    /// A command that is run for this client and ends with its session.
    Command { client: Client, fifo_dir: PathBuf, request: ExecRequest },
    /// A container's own process, which outlives the session.
    Container(Attachment),
}

/// Serves a client, to which `writer` sends messages, until the process exits, the client disconnects or the agent
/// stops.
pub(super) async fn serve(
    client: impl Stream<Item = Incoming> + Unpin,
    messages: mpsc::Sender<Outgoing>,
    writer: impl Future<Output = ()>,
    session: Session,
) {
    let Session { process, streams, version, stop, .. } = session;
    let work = async {
        let status = match process {
            Process::Command { client: runtime, fifo_dir, request } => {
                match start(&runtime, &fifo_dir, request).await {
                    Ok(session) => run(session, client, streams, &messages).await,
                    Err(error) => Some(start_failure(&error, &messages).await),
                }
            }
            Process::Container(attachment) => attachment.serve(client, streams, &messages).await,
        };
        if let Some(status) = status.map(|status| version.status(status)).filter(|status| !status.is_empty()) {
            send(&messages, Channel::Error, status.into()).await;
        }
        drop(messages);
    };
    let mut writer = std::pin::pin!(writer);
    tokio::select! {
        () = work => drop(timeout(CLOSE_TIMEOUT, writer).await),
        () = &mut writer => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a running process. Returns its status, or `None` if the client has disconnected.
async fn run(
    session: ExecSession,
    client: impl Stream<Item = Incoming> + Unpin,
    streams: Streams,
    messages: &mpsc::Sender<Outgoing>,
) -> Option<Vec<u8>> {
    let ExecSession { stdin, stdout, stderr, control, mut exit } = session;
    let activity = Activity::default();
    let output = async {
        let stderr = async {
            if let Some(stderr) = stderr {
                pump(stderr, Channel::Stderr, streams.stderr, messages, &activity).await;
            }
        };
        tokio::join!(pump(stdout, Channel::Stdout, streams.stdout, messages, &activity), stderr);
    };
    let exited = async {
        let mut output = std::pin::pin!(output);
        let mut code = None;
        tokio::select! {
            () = &mut output => {}
            exited = exit.wait() => code = Some(exited),
        }
        match code {
            None => exit.wait().await,
            Some(code) => {
                activity.since_last_check();
                while timeout(OUTPUT_IDLE, &mut output).await.is_err() && activity.since_last_check() {}
                code
            }
        }
    };
    tokio::select! {
        code = exited => Some(match code {
            Ok(code) => exit_status(code),
            Err(error) => failure_status(&error.to_string()),
        }),
        () = receive(client, stdin, &control) => None,
    }
}

/// Reports a command that could not be started as a shell does: a message on stderr, and exit code 126 or 127.
async fn start_failure(error: &ExecError, messages: &mpsc::Sender<Outgoing>) -> Vec<u8> {
    match error {
        ExecError::NotStarted { exit_code, message } => {
            send(messages, Channel::Stderr, format!("{message}\r\n").into()).await;
            exit_status(*exit_code)
        }
        _ => failure_status(&format!("error executing command in container: {error}")),
    }
}
