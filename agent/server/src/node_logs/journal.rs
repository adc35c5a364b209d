//! Logs of services: from journalctl where the journal knows the service, else from the service's file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use super::files::{Found, find};
use super::query::{Options, Query};
use limpet_host::blocking;

/// The deadline of a response, as in kubelet.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of each read, in bytes.
const READ_SIZE: usize = 32 << 10;
/// The most bytes of the journal's list of services.
const MAX_UNITS: u64 = 1 << 20;
const JOURNALCTL: &str = "journalctl";

/// Receives the response piece by piece; an error means that the client has disconnected.
type Out = mpsc::Sender<Result<Bytes, std::io::Error>>;
/// The client has disconnected.
struct Gone;

/// Responds to a valid query. `turn` is held until the response ends.
pub(super) fn serve(dir: PathBuf, query: Query, turn: OwnedSemaphorePermit) -> Response {
    let (out, pieces) = mpsc::channel(2);
    tokio::spawn(async move {
        let _turn = turn;
        // At a disconnect or a timeout the client keeps what it has received.
        let _ = timeout(QUERY_TIMEOUT, copy(&dir, query, &out)).await;
    });
    let body = Body::from_stream(futures_util::stream::unfold(pieces, async |mut pieces| {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    }));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

async fn copy(dir: &Path, query: Query, out: &Out) -> Result<(), Gone> {
    let known = units().await;
    let Query { services, options, .. } = query;
    // As in kubelet, the list has the names of units.
    let is_known = |service: &String| known.contains(&format!("{service}.service"));
    let (logged, others): (Vec<_>, Vec<_>) = services.into_iter().partition(is_known);
    if !logged.is_empty() {
        journal(&options, &logged, out).await?;
    }
    if !others.is_empty() && !options.is_empty() {
        let message = format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            others.join(" ")
        );
        return write(out, message).await;
    }
    for service in others {
        file(dir, service, out).await?;
    }
    Ok(())
}

/// The units with lines in the journal; empty where there is no journal.
async fn units() -> String {
    let mut command = Command::new(JOURNALCTL);
    command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.kill_on_drop(true).spawn() else { return String::new() };
    let mut units = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // On an error, the units read so far count.
        let _ = stdout.take(MAX_UNITS).read_to_end(&mut units).await;
    }
    String::from_utf8_lossy(&units).into_owned()
}

async fn journal(options: &Options, services: &[String], out: &Out) -> Result<(), Gone> {
    let mut command = Command::new(JOURNALCTL);
    command.args(options.arguments(services)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.kill_on_drop(true).spawn() else {
        return write(out, "\nerror: journal output not available\n".to_owned()).await;
    };
    if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
        tokio::try_join!(pass(stdout, out), pass(stderr, out))?;
    }
    // Both pipes are closed, so the process is ending.
    let _ = child.wait().await;
    Ok(())
}

/// Serves a service's file, at the paths that kubelet guesses.
async fn file(dir: &Path, service: String, out: &Out) -> Result<(), Gone> {
    let names = [service.clone(), format!("{service}.log"), format!("{service}/{service}.log")];
    let root = dir.to_owned();
    let first = move || {
        let entries =
            names.iter().filter(|name| !matches!(&***name, "." | "..")).map(|name| find(&root, Path::new(name)));
        entries.filter_map(Result::ok).find_map(|entries| match entries {
            Found::File(file, size) => Some((file, size)),
            Found::Directory(_) => None,
        })
    };
    match blocking::run(dir.to_owned(), blocking::DEADLINE, move |_| first()).await {
        Ok(Some((file, size))) => pass(tokio::fs::File::from_std(file).take(size), out).await,
        Ok(None) => write(out, format!("\nlog not found for {service}\n")).await,
        Err(error) => write(out, format!("\nerror getting log for {service}: {error}\n")).await,
    }
}

async fn pass(mut stream: impl AsyncRead + Unpin, out: &Out) -> Result<(), Gone> {
    let mut buffer = vec![0; READ_SIZE];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        out.send(Ok(Bytes::copy_from_slice(&buffer[..count]))).await.map_err(|_| Gone)?;
    }
    Ok(())
}

async fn write(out: &Out, text: String) -> Result<(), Gone> {
    out.send(Ok(text.into())).await.map_err(|_| Gone)
}
