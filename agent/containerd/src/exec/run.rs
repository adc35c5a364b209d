//! A command that is run to its end: its exit code, and what it wrote.

use std::io::ErrorKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::{ExecError, ExecSession};

/// A command that has exited may have left its output open in child processes, which are not waited for.
const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// What is read at once.
const CHUNK: usize = 4 << 10;

/// What a command writes, up to a limit; the rest is read and dropped. One may be for both of its outputs.
#[derive(Debug)]
pub struct CappedOutput {
    most: usize,
    bytes: Mutex<Vec<u8>>,
}

impl CappedOutput {
    /// Keeps `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { most, bytes: Mutex::default() }
    }

    /// What was kept.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, chunk: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.most - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    /// Reads a stream to its end, so that its writer never has to wait. Many commands run at one moment and write nothing for
    /// long: a buffer is there only while something is read.
    async fn read(&self, stream: Receiver) {
        while stream.readable().await.is_ok() {
            let mut chunk = [0; CHUNK];
            match stream.try_read(&mut chunk) {
                Ok(count @ 1..) => {
                    self.add(&chunk[..count]);
                    // A writer that is as fast as this leaves others their turn.
                    tokio::task::consume_budget().await;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl ExecSession {
    /// Waits until the command has ended, and keeps what it writes. Returns its exit code, 128 plus the signal's number if a
    /// signal ended it. Dropping it kills the process.
    ///
    /// # Errors
    /// When its exit is not known. A command that fails is a result.
    pub async fn finish(self, output: &CappedOutput, errors: &CappedOutput) -> Result<i32, ExecError> {
        let Self { stdout, stderr, mut exit, .. } = self;
        let read = async {
            let errors = async {
                if let Some(stderr) = stderr {
                    errors.read(stderr).await;
                }
            };
            tokio::join!(output.read(stdout), errors);
        };
        let mut read = std::pin::pin!(read);
        tokio::select! {
            code = exit.wait() => {
                // What was not read by then is not waited for.
                let _ = timeout(OUTPUT_IDLE, &mut read).await;
                code
            }
            () = &mut read => exit.wait().await,
        }
    }
}
