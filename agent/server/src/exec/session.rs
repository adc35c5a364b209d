//! One client and one process, a command of its own or a container's: connects the process's streams with what the
//! client sends and receives, until either side ends. How that looks on the wire is [`super::websocket`]'s and
//! [`super::spdy`]'s.

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

/// Messages queued for a slow client; when the queue is full, the process has to wait.
pub(super) const OUTPUT_QUEUE_LEN: usize = 1;
/// An exited process may have left its output open in child processes: after this long without output, it is not
/// waited for.
pub(crate) const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// How long a client may take to receive the last messages.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client is connected with.
pub(super) struct Session {
    pub(super) process: Process,
    pub(super) streams: Streams,
    /// What the client speaks.
    pub(super) version: Version,
    /// How long it may be idle.
    pub(super) idle: IdleTimeout,
    /// Cancelled when the agent stops.
    pub(super) stop: CancellationToken,
}

/// Whose streams they are.
pub(super) enum Process {
    /// A command that is run for this client and does not outlive its session.
    Command { client: Client, fifo_dir: PathBuf, request: ExecRequest },
    /// A container's own process, which does.
    Container(Attachment),
}

/// Serves a client, whose messages `writer` sends, until the process exits, the client disconnects or the agent stops.
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

/// Serves a running process; returns its status, or `None` when the client has disconnected.
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

/// A command that could not be started fails as in a shell: a message on stderr, and exit code 126 or 127.
async fn start_failure(error: &ExecError, messages: &mpsc::Sender<Outgoing>) -> Vec<u8> {
    match error {
        ExecError::NotStarted { exit_code, message } => {
            send(messages, Channel::Stderr, format!("{message}\r\n").into()).await;
            exit_status(*exit_code)
        }
        _ => failure_status(&format!("error executing command in container: {error}")),
    }
}
