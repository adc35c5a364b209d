//! The end of a process, told by the kernel whatever became of the shim above it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// Resolves when the process behind the pidfd has ended, all its threads included. Cancel safe.
///
/// # Errors
/// The reactor takes no more descriptors, or has ended.
#[allow(unsafe_code)]
pub async fn ended(process: Arc<OwnedFd>) -> io::Result<()> {
    // SAFETY: an `OwnedFd` keeps its descriptor, and the `AsyncFd` owns a share of it for as long as it is registered.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE)? };
    loop {
        let mut ready = process.readable().await?;
        if ready.ready().is_readable() {
            return Ok(());
        }
        ready.clear_ready_matching(Ready::READABLE);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[tokio::test]
    async fn a_process_ends_once_and_stays_ended() {
        let mut child =
            Command::new("sh").args(["-c", "read -r line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Arc::new(pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap());
        let mut waiting = std::pin::pin!(ended(Arc::clone(&process)));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(child.stdin.take());
        waiting.await.unwrap();
        ended(process).await.unwrap();
        child.wait().unwrap();
    }
}
