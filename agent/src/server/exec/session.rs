//! One command over one WebSocket: the process's streams and the client's messages, until one of them ends.

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
use super::wire::{Channel, Command, PROTOCOL_V5, Wants, exit_status, failure_status, parse_size};
use limpet_containerd::exec::{ExecControl, ExecError, ExecRequest, ExecSession, start};

/// Output is sent in messages of at most so many bytes.
const CHUNK: usize = 32 << 10;
/// Messages waiting for a slow client; then the process waits.
const QUEUE: usize = 4;
/// How often a silent connection is tried: a client that is gone without a word is found by it.
const PING: Duration = Duration::from_secs(30);
/// A process that has ended may have left its output to children that live on: silent for so long, they are not
/// waited for.
const QUIET: Duration = Duration::from_secs(1);
/// What a client gets to take the last messages.
const FAREWELL: Duration = Duration::from_secs(10);

/// Runs `command` in `container` and serves it until it ends, the client goes or the agent stops. The process does
/// not outlive this.
pub(super) async fn serve(socket: WebSocket, state: ExecState, container: String, command: Command) {
    let closable = socket.protocol().is_some_and(|protocol| protocol == PROTOCOL_V5);
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(QUEUE);
    let request = ExecRequest {
        container_id: container,
        command: command.arguments,
        tty: command.tty,
        stdin: command.wants.stdin,
    };
    let session = start(&state.client, &state.fifo_dir, request);
    let work = async {
        let status = match session.await {
            Ok(session) => run(session, stream, command.wants, closable, &messages).await,
            Err(error) => Some(refusal(&error, &messages).await),
        };
        if let Some(status) = status {
            send(&messages, Channel::Error, &status).await;
        }
        drop(messages);
    };
    let mut writer = std::pin::pin!(write(sink, queue));
    tokio::select! {
        () = work => drop(timeout(FAREWELL, writer).await),
        () = &mut writer => {}
        () = state.stop.cancelled() => {}
    }
}

/// Serves a process that runs; its status, or `None` when the client has gone.
async fn run(
    session: ExecSession,
    stream: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    wants: Wants,
    closable: bool,
    messages: &mpsc::Sender<Message>,
) -> Option<Vec<u8>> {
    let ExecSession { stdin, stdout, stderr, control, mut exit } = session;
    // The client is told that it is connected, as kubelet tells it.
    let first = if wants.stdout {
        Channel::Stdout
    } else if wants.stderr {
        Channel::Stderr
    } else {
        Channel::Error
    };
    send(messages, first, b"").await;
    let activity = Activity::default();
    let output = async {
        let stderr = async {
            if let Some(stderr) = stderr {
                pump(stderr, Channel::Stderr, wants.stderr, messages, &activity).await;
            }
        };
        tokio::join!(pump(stdout, Channel::Stdout, wants.stdout, messages, &activity), stderr);
    };
    let ended = async {
        let mut output = std::pin::pin!(output);
        let mut code = None;
        tokio::select! {
            () = &mut output => {}
            ended = exit.wait() => code = Some(ended),
        }
        match code {
            None => exit.wait().await,
            Some(code) => {
                activity.since_last_look();
                while timeout(QUIET, &mut output).await.is_err() && activity.since_last_look() {}
                code
            }
        }
    };
    tokio::select! {
        code = ended => Some(match code {
            Ok(code) => exit_status(code),
            Err(error) => failure_status(&error.to_string()),
        }),
        () = receive(stream, stdin, &control, closable) => None,
    }
}

/// A command that could not be started ends as in a shell: its error output says why, and its exit code is 126 or 127.
async fn refusal(error: &ExecError, messages: &mpsc::Sender<Message>) -> Vec<u8> {
    match error {
        ExecError::NotStarted { exit_code, message } => {
            send(messages, Channel::Stderr, format!("{message}\r\n").as_bytes()).await;
            exit_status(*exit_code)
        }
        _ => failure_status(&format!("error executing command in container: {error}")),
    }
}

/// Passes the client's input and sizes on; returns when the client is gone.
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
                    tracing::debug!(%error, "the input of a command cannot be ended");
                }
            }
            Some((Channel::Resize, data)) => {
                if let Some((width, height)) = parse_size(data)
                    && let Err(error) = control.resize(width, height).await
                {
                    tracing::debug!(%error, "a terminal keeps its size");
                }
            }
            // Not for a client to send; kubelet passes over them too.
            _ => {}
        }
    }
}

/// Reads one of the process's streams to its end. What nobody wants is read all the same: the process must not wait.
async fn pump(
    mut stream: impl AsyncRead + Unpin,
    channel: Channel,
    wanted: bool,
    messages: &mpsc::Sender<Message>,
    activity: &Activity,
) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        activity.begin();
        if wanted {
            send(messages, channel, &buffer[..count]).await;
        }
        activity.end();
    }
}

/// Whether output moves, or waits for the client, which is not its fault.
#[derive(Debug, Default)]
struct Activity {
    reads: AtomicU64,
    sending: AtomicUsize,
    seen: AtomicU64,
}

impl Activity {
    fn begin(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.sending.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether output has moved since the last call, or waits to be sent now.
    fn since_last_look(&self) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        self.seen.swap(reads, Ordering::Relaxed) != reads || self.sending.load(Ordering::Relaxed) > 0
    }
}

async fn send(messages: &mpsc::Sender<Message>, channel: Channel, data: &[u8]) {
    // The writer ends before this only with the connection, and then all of it ends.
    let _ = messages.send(Message::Binary(channel.message(data).into())).await;
}

/// Sends what is queued, and a ping now and then; returns when the queue has ended or the client is gone.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    let mut ping = interval(PING);
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
    // Whoever has left already needs no farewell.
    let _ = sink.send(Message::Close(Some(normal))).await;
}
