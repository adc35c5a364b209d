//! The client side of a WebSocket of `limpet exec` or `limpet attach`: sends input and terminal sizes, receives output
//! and the exit code.

use std::io::{self, Read as _};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message, protocol::Role};

use super::terminal::{RawMode, size};
use crate::error::CliError;
use limpet_wire::command::{Channel, parse_status, size as size_message};
use limpet_wire::socket_client::ClientError;

/// The largest message of input, in bytes.
const MAX_INPUT_MESSAGE: usize = 32 << 10;
/// Messages of input waiting to be sent.
const INPUT_QUEUE_LEN: usize = 4;

/// Serves `connection` until the command exits; returns its exit code. That of an attachment is 0.
pub(crate) async fn run(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    stdin: bool,
    tty: bool,
) -> Result<i32, CliError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| CliError::System { what, source }
    };
    let mut hangup = signal(SignalKind::hangup()).map_err(system("watch for signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("watch for signals"))?;
    let resized = signal(SignalKind::window_change()).map_err(system("watch the terminal's size"))?;
    // Restores the terminal on every return path.
    let _raw = (tty && stdin).then(RawMode::begin).transpose().map_err(system("make the terminal raw"))?;
    let input = stdin.then(read_stdin).transpose().map_err(system("read standard input"))?;
    let (sink, stream) = WebSocketStream::from_raw_socket(connection, Role::Client, None).await.split();
    // Runs concurrently: a command that waits for its output to be read does not read input.
    tokio::select! {
        code = receive(stream) => code,
        () = send(sink, input, tty.then_some(resized)) => Err(lost("the connection broke")),
        _ = hangup.recv() => Err(lost("hung up")),
        _ = terminate.recv() => Err(lost("terminated")),
    }
}

fn lost(message: &str) -> CliError {
    CliError::System { what: "run the command".to_owned(), source: io::Error::other(message.to_owned()) }
}

/// Writes output to stdout and stderr until the exit code arrives.
async fn receive(mut stream: impl Stream<Item = Result<Message, Error>> + Unpin) -> Result<i32, CliError> {
    while let Some(message) = stream.next().await {
        let data = match message {
            Ok(Message::Binary(data)) => data,
            Ok(Message::Close(_)) => break,
            Ok(_) => continue,
            Err(error) => return Err(lost(&error.to_string())),
        };
        match Channel::split(&data) {
            Some((Channel::Stdout, data)) => show(io::stdout().lock(), data)?,
            Some((Channel::Stderr, data)) => show(io::stderr().lock(), data)?,
            Some((Channel::Error, data)) if !data.is_empty() => {
                return Ok(parse_status(data).map_err(|message| ClientError::Refused { status: 500, message })?);
            }
            _ => {}
        }
    }
    Err(lost("the agent closed the connection without an exit status"))
}

fn show(mut to: impl io::Write, data: &[u8]) -> io::Result<()> {
    to.write_all(data)?;
    to.flush()
}

/// Sends input, its end and terminal sizes; returns only when the connection is closed.
async fn send(
    mut sink: impl Sink<Message, Error = Error> + Unpin,
    mut input: Option<mpsc::Receiver<Vec<u8>>>,
    mut resized: Option<Signal>,
) {
    let binary = |channel: Channel, data: &[u8]| Message::Binary(channel.message(data).into());
    let mut sizes = if resized.is_some() { size() } else { None };
    loop {
        if let Some((width, height)) = sizes.take()
            && sink.send(binary(Channel::Resize, &size_message(width, height))).await.is_err()
        {
            return;
        }
        let read = async {
            match &mut input {
                Some(input) => input.recv().await,
                None => std::future::pending().await,
            }
        };
        let changed = async {
            match &mut resized {
                Some(resized) => resized.recv().await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            data = read => match data {
                Some(data) => binary(Channel::Stdin, &data),
                None => {
                    input = None;
                    binary(Channel::Close, &[Channel::Stdin as u8])
                }
            },
            _ = changed => {
                sizes = size();
                continue;
            }
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

/// Reads stdin on a thread that lives as long as the process: a read of a terminal cannot be cancelled, and the runtime
/// would wait for one of its own threads.
pub(crate) fn read_stdin() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (to, input) = mpsc::channel(INPUT_QUEUE_LEN);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut buffer = vec![0; MAX_INPUT_MESSAGE];
        while let Ok(count @ 1..) = io::stdin().lock().read(&mut buffer) {
            if to.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    })?;
    Ok(input)
}
