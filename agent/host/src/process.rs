//! References to processes (pidfds): the kernel reports their exit even if their shim is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{Interest, Ready};

use crate::inotify::register;
use limpet_model::container::ContainerId;
use limpet_model::process::{EndedProcess, ProcessHandle};

/// The consequence of missing pidfds, for messages.
pub const WITHOUT_PIDFDS: &str =
    "container exits are reported by containerd alone, and orphaned processes of a crash are not killed";

/// Whether pidfds are available, tried with this process.
///
/// # Errors
/// The kernel is older than 5.3, or a seccomp filter refuses the call.
pub fn probe() -> io::Result<()> {
    Ok(pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map(drop)?)
}

/// A handle to the process that currently has `pid`, or [`EndedProcess`] if none has; `None` if the kernel has no
/// pidfds.
pub fn open(pid: u32) -> Option<Arc<dyn ProcessHandle>> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Some(Arc::new(PidfdHandle(Arc::new(pidfd)))),
        Err(Errno::SRCH) => Some(Arc::new(EndedProcess)),
        Err(_) => None,
    }
}

/// Whether the process `pid` is in the container's cgroup.
pub fn is_in_container(pid: u32, container: &ContainerId) -> bool {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    is_named(&cgroups, container.as_str())
}

/// The parent of process `pid`; `None` if it has exited, or its parent is in another PID namespace.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok().filter(|parent| *parent > 0)
}

/// The children of all threads of process `pid`; none if the kernel does not list them (`CONFIG_PROC_CHILDREN`).
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Whether the process `pid` is the first of its pid namespace.
pub(crate) fn is_init(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
}

/// A process by its pidfd.
#[derive(Debug)]
struct PidfdHandle(Arc<OwnedFd>);

impl ProcessHandle for PidfdHandle {
    fn is_alive(&self) -> bool {
        !has_exited(self.0.as_fd())
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
        Box::pin(ended(Arc::clone(&self.0)))
    }
}

/// Whether the process behind the pidfd has exited with all its threads; true if that is unknown.
pub fn has_exited(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut fds, Some(&at_once)), Ok(0))
}

/// Whether a process's cgroups include the container's: `…/<id>`, or `…/limpet-<id>.scope`.
fn is_named(cgroups: &str, container: &str) -> bool {
    cgroups.split(['/', '\n', '-', '.']).any(|part| part == container)
}

/// Resolves when the process behind the pidfd has exited with all its threads. Cancel safe.
///
/// # Errors
///
/// The reactor accepts no more descriptors, or is shut down.
async fn ended(process: Arc<OwnedFd>) -> io::Result<()> {
    let process = register(process, Interest::READABLE)?;
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

    use super::*;

    #[test]
    fn a_process_without_a_pidfd_is_known_by_its_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for (cgroups, is) in [
            (format!("4:memory:/kubepods/burstable/pod1-2/{id}\n"), true),
            (format!("0::/kubepods.slice/kubepods-pod1_2.slice/limpet-{id}.scope\n"), true),
            (format!("0::/kubepods/pod1/{id}0\n"), false),
            ("0::/system.slice/ssh.service\n".to_owned(), false),
        ] {
            assert_eq!(is_named(&cgroups, &id), is, "{cgroups}");
        }
        assert!(!is_in_container(std::process::id(), &ContainerId::new(id)) && probe().is_ok());
    }

    #[tokio::test]
    async fn an_exit_is_reported_once_and_stays_reported() {
        let mut child =
            Command::new("sh").args(["-c", "read -r line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = open(child.id()).unwrap();
        let mut waiting = Arc::clone(&process).ended();
        assert!(futures_util::poll!(waiting.as_mut()).is_pending() && process.is_alive());
        drop(child.stdin.take());
        waiting.await.unwrap();
        assert!(!process.is_alive());
        process.ended().await.unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn parents_and_children_are_known() {
        let mut child =
            Command::new("sh").args(["-c", "read -r line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let self_pid = std::process::id();
        assert_eq!(parent(child.id()), Some(self_pid));
        let listed = std::path::Path::new("/proc/thread-self/children").exists();
        assert_eq!(children(self_pid).contains(&child.id()), listed);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(parent(child.id()), None);
    }

    #[tokio::test]
    async fn a_process_that_is_gone_has_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let process = open(child.id()).unwrap();
        assert!(!process.is_alive());
        process.ended().await.unwrap();
    }
}
