//! Processes of containers: their names in the kernel, and handles that stay valid when a pid is reused.

use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

use crate::container::ContainerId;
use crate::pod::PodUid;

/// SIGKILL, which the OOM killer also sends.
pub const SIGKILL: u32 = 9;

/// A process as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessName {
    /// Its pid in the initial pid namespace.
    pub pid: u32,
    /// The first 15 bytes of its program's name.
    pub command: String,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)
    }
}

/// The sender of a terminating signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// The signal's number.
    pub signal: u32,
    /// The process; `None` for the kernel itself, after a fault or an OOM kill.
    pub process: Option<ProcessName>,
    /// The process's user id.
    pub uid: u32,
}

/// The container id in the text of `/proc/<pid>/cgroup`: the 64 digits of `…/<id>` or `…/limpet-<id>.scope`.
pub fn container_in_cgroups(cgroups: &str) -> Option<ContainerId> {
    let parts = cgroups.split(['/', '\n', '-', '.']);
    let is_id = |part: &&str| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.filter(is_id).map(ContainerId::new).next()
}

/// A handle to one process that stays valid even if its pid is reused.
pub trait ProcessHandle: fmt::Debug + Send + Sync {
    /// Whether the process has not exited.
    fn is_alive(&self) -> bool;

    /// Resolves when the process has exited, including all its threads. Cancel safe.
    ///
    /// # Errors
    ///
    /// Its exit cannot be waited for on this kernel.
    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
}

/// The handle of a process that had exited before it could be opened.
#[derive(Debug, Clone, Copy)]
pub struct EndedProcess;

impl ProcessHandle for EndedProcess {
    fn is_alive(&self) -> bool {
        false
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Looks up processes.
pub trait Processes {
    /// A handle to the process that currently has `pid`, or [`EndedProcess`] if none has; `None` if the kernel has no
    /// handles.
    fn open(&self, pid: u32) -> Option<Arc<dyn ProcessHandle>>;

    /// The first process of the container, or another one in its cgroup; `None` if none of them runs.
    fn in_container(&self, pod: &PodUid, container: &ContainerId) -> Option<u32>;

    /// Whether the process `pid` is in the container's cgroup; needed for processes without a handle.
    fn is_in_container(&self, pid: u32, container: &ContainerId) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_found_in_the_cgroups_of_both_drivers() {
        let id = "0123456789abcdef".repeat(4);
        for text in [
            format!("4:memory:/kubepods/burstable/pod1-2/{id}\n"),
            format!("0::/kubepods.slice/kubepods-pod1_2.slice/limpet-{id}.scope\n"),
            format!("0::/kubepods/pod1/{id}/nested\n"),
        ] {
            assert_eq!(container_in_cgroups(&text), Some(ContainerId::new(id.as_str())), "{text}");
        }
        assert_eq!(container_in_cgroups("0::/system.slice/ssh.service\n"), None);
    }
}
