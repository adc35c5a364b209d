//! Runs a command to its end and collects its exit code and output.

use std::io::ErrorKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::{ExecError, ExecSession};

/// How long to wait for further output of a command that has exited: child processes may keep its output open.
const OUTPUT_IDLE: Duration = Duration::from_secs(1);
/// The size of a read in bytes.
const CHUNK: usize = 4 << 10;

/// A command's output up to a limit; the rest is read and dropped. Both outputs may share one.
#[derive(Debug)]
pub struct CappedOutput {
    most: usize,
    bytes: Mutex<Vec<u8>>,
}

impl CappedOutput {
    /// Keeps at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { most, bytes: Mutex::default() }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, chunk: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.most - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    /// Reads a stream to its end, so that its writer never blocks. Many commands run at once and write nothing for
    /// long, so the buffer exists only during a read.
    async fn read(&self, stream: Receiver) {
        while stream.readable().await.is_ok() {
            let mut chunk = [0; CHUNK];
            match stream.try_read(&mut chunk) {
                Ok(count @ 1..) => {
                    self.add(&chunk[..count]);
                    // Lets other tasks run while a fast writer keeps this one busy.
                    tokio::task::consume_budget().await;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl ExecSession {
    /// Waits until the command has ended, and keeps its output. Returns its exit code, or 128 plus the signal's
    /// number. Dropping the future kills the process.
    ///
    /// # Errors
    ///
    /// The exit is unknown. A command that fails is a result.
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
                // Output that has not been read by then is dropped.
                let _ = timeout(OUTPUT_IDLE, &mut read).await;
                code
            }
            () = &mut read => exit.wait().await,
        }
    }
}
