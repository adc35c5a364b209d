//! A command that is run to its end: its exit code, and what it wrote.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::{ExecError, ExecRequest, ExecSession, start};
use crate::client::Client;

/// A command that has exited may have left its output open in child processes, which are not waited for.
const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// What is read at once.
const CHUNK: usize = 16 << 10;

/// A command that has run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

/// Runs a command to its end, as [`start`] does, and keeps `most` bytes of each of its outputs. Dropping it kills the
/// process.
///
/// # Errors
/// When it was not run. A command that fails is a result.
pub async fn run(client: &Client, fifo_dir: &Path, request: ExecRequest, most: usize) -> Result<Executed, ExecError> {
    let ExecSession { stdout, stderr, mut exit, .. } = start(client, fifo_dir, request).await?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let read = async {
        let errors = async {
            if let Some(stderr) = stderr {
                keep(stderr, &mut err, most).await;
            }
        };
        tokio::join!(keep(stdout, &mut out, most), errors);
    };
    let code = {
        let mut read = std::pin::pin!(read);
        tokio::select! {
            code = exit.wait() => {
                // What was not read by then is not waited for.
                let _ = timeout(OUTPUT_IDLE, &mut read).await;
                code?
            }
            () = &mut read => exit.wait().await?,
        }
    };
    Ok(Executed { code, stdout: out, stderr: err })
}

/// Reads a stream to its end, so that its writer never has to wait, and keeps what there is room for. Many commands run at one
/// moment and write nothing for long: a buffer is there only while something is read.
async fn keep(stream: Receiver, kept: &mut Vec<u8>, most: usize) {
    while stream.readable().await.is_ok() {
        let mut chunk = [0; CHUNK];
        match stream.try_read(&mut chunk) {
            Ok(count @ 1..) => {
                let room = most - kept.len();
                kept.extend_from_slice(&chunk[..count.min(room)]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
        }
    }
}
