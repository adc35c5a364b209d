//! The end of a process, told by the kernel whatever became of the shim above it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

use limpet_model::container::ContainerId;

/// What is lost where processes cannot be held.
pub const UNHELD: &str =
    "ends of containers are told by containerd alone, and processes that a crash has left are not ended";

/// Whether processes can be held: by a descriptor of this very process.
///
/// # Errors
/// The kernel is older than 5.3, or a filter of system calls refuses.
pub fn probe() -> io::Result<()> {
    Ok(pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map(drop)?)
}

/// Whether the process `pid` is one of the container's: it is in its cgroup. For where it is not held.
pub fn is_of(pid: u32, container: &ContainerId) -> bool {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    is_named(&cgroups, container.as_str())
}

/// Whether the container is in a process's list of cgroups: `…/<id>`, or `…/limpet-<id>.scope`.
fn is_named(cgroups: &str, container: &str) -> bool {
    cgroups.split(['/', '\n', '-', '.']).any(|part| part == container)
}

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

    use rustix::process::Pid;

    use super::*;

    #[test]
    fn a_process_without_a_hold_on_it_is_known_by_its_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for (cgroups, is) in [
            (format!("4:memory:/kubepods/burstable/pod1-2/{id}\n"), true),
            (format!("0::/kubepods.slice/kubepods-pod1_2.slice/limpet-{id}.scope\n"), true),
            (format!("0::/kubepods/pod1/{id}0\n"), false),
            ("0::/system.slice/ssh.service\n".to_owned(), false),
        ] {
            assert_eq!(is_named(&cgroups, &id), is, "{cgroups}");
        }
        assert!(!is_of(std::process::id(), &ContainerId::new(id)) && probe().is_ok());
    }

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
