//! One command over one WebSocket: connects the process's streams with the client's messages until either side ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::SplitSink;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::ExecState;
use super::wire::{Channel, Command, PROTOCOL_V5, Streams, exit_status, failure_status, parse_size};
use limpet_containerd::exec::{ExecControl, ExecError, ExecRequest, ExecSession, start};

/// The largest message with output, in bytes.
const CHUNK: usize = 32 << 10;
/// Messages queued for a slow client; when the queue is full, the process has to wait.
const QUEUE: usize = 4;
/// How often an idle connection is pinged, to detect a client that has disappeared.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// An exited process may have left its output open in child processes: after this long without output, it is not
/// waited for.
const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// How long a client may take to receive the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `command` in `container` and serves it until it exits, the client disconnects or the agent stops. The process
/// does not outlive this call.
pub(super) async fn serve(socket: WebSocket, state: ExecState, container: String, command: Command) {
    let closable = socket.protocol().is_some_and(|protocol| protocol == PROTOCOL_V5);
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(QUEUE);
    let request = ExecRequest {
        container_id: container,
        command: command.arguments,
        tty: command.tty,
        stdin: command.streams.stdin,
    };
    let session = start(&state.client, &state.fifo_dir, request);
    let work = async {
        let status = match session.await {
            Ok(session) => run(session, stream, command.streams, closable, &messages).await,
            Err(error) => Some(start_failure(&error, &messages).await),
        };
        if let Some(status) = status {
            send(&messages, Channel::Error, &status).await;
        }
        drop(messages);
    };
    let mut writer = std::pin::pin!(write(sink, queue));
    tokio::select! {
        () = work => drop(timeout(CLOSE_TIMEOUT, writer).await),
        () = &mut writer => {}
        () = state.stop.cancelled() => {}
    }
}

/// Serves a running process; returns its status, or `None` when the client has disconnected.
async fn run(
    session: ExecSession,
    stream: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    streams: Streams,
    closable: bool,
    messages: &mpsc::Sender<Message>,
) -> Option<Vec<u8>> {
    let ExecSession { stdin, stdout, stderr, control, mut exit } = session;
    // An empty message tells the client that it is connected, as kubelet's does.
    let first = if streams.stdout {
        Channel::Stdout
    } else if streams.stderr {
        Channel::Stderr
    } else {
        Channel::Error
    };
    send(messages, first, b"").await;
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
        () = receive(stream, stdin, &control, closable) => None,
    }
}

/// A command that could not be started fails as in a shell: a message on stderr, and exit code 126 or 127.
async fn start_failure(error: &ExecError, messages: &mpsc::Sender<Message>) -> Vec<u8> {
    match error {
        ExecError::NotStarted { exit_code, message } => {
            send(messages, Channel::Stderr, format!("{message}\r\n").as_bytes()).await;
            exit_status(*exit_code)
        }
        _ => failure_status(&format!("error executing command in container: {error}")),
    }
}

/// Passes on the client's input and terminal sizes; returns when the client has disconnected.
async fn receive(
    mut stream: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    mut stdin: Option<Sender>,
    control: &ExecControl,
    closable: bool,
) {
    while let Some(Ok(message)) = stream.next().await {
        let data = match &message {
            Message::Binary(data) => data.as_ref(),
            Message::Text(text) => text.as_bytes(),
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        match Channel::split(data) {
            Some((Channel::Stdin, data)) => {
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(data).await.is_err()
                {
                    stdin = None;
                }
            }
            Some((Channel::Close, [0])) if closable && stdin.take().is_some() => {
                if let Err(error) = control.close_stdin().await {
                    tracing::debug!(%error, "cannot close the stdin of a command");
                }
            }
            Some((Channel::Resize, data)) => {
                if let Some((width, height)) = parse_size(data)
                    && let Err(error) = control.resize(width, height).await
                {
                    tracing::debug!(%error, "cannot resize a terminal");
                }
            }
            // Not for a client to send; kubelet ignores them too.
            _ => {}
        }
    }
}

/// Reads one of the process's streams to its end. Streams the client did not ask for are drained: the process must not
/// block.
async fn pump(
    mut stream: impl AsyncRead + Unpin,
    channel: Channel,
    forward: bool,
    messages: &mpsc::Sender<Message>,
    activity: &Activity,
) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        activity.begin();
        if forward {
            send(messages, channel, &buffer[..count]).await;
        }
        activity.end();
    }
}

/// Whether output is read, or is waiting for the client.
#[derive(Debug, Default)]
struct Activity {
    reads: AtomicU64,
    sending: AtomicUsize,
    checked: AtomicU64,
}

impl Activity {
    fn begin(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.sending.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether output was read since the last call, or is being sent now.
    fn since_last_check(&self) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        self.checked.swap(reads, Ordering::Relaxed) != reads || self.sending.load(Ordering::Relaxed) > 0
    }
}

async fn send(messages: &mpsc::Sender<Message>, channel: Channel, data: &[u8]) {
    // The writer stops first only if the connection is lost, and then everything stops.
    let _ = messages.send(Message::Binary(channel.message(data).into())).await;
}

/// Sends queued messages, and a ping now and then; returns when the queue is closed or the client has disconnected.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            _ = ping.tick() => Some(Message::Ping(Default::default())),
        };
        let Some(message) = message else { break };
        if sink.send(message).await.is_err() {
            return;
        }
    }
    close(sink).await;
}

async fn close(mut sink: impl Sink<Message> + Unpin) {
    let normal = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    // A client that has disconnected needs no close message.
    let _ = sink.send(Message::Close(Some(normal))).await;
}
