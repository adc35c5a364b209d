//! Errors of cgroup operations.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted below /sys/fs/cgroup")]
    NotMounted,
    /// The kernel lacks the controller that a limit needs.
    #[error("set {file} of cgroup {group} to {value}: the kernel does not provide the {controller} controller here{}", remedy(.controller))]
    NoController {
        /// The cgroup, from the root of the hierarchy.
        group: PathBuf,
        controller: &'static str,
        /// The file that is missing.
        file: Cow<'static, str>,
        value: String,
    },
    /// A file operation in a cgroup failed.
    #[error("{operation} {path}: {source}")]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    /// A cgroup that others should have created does not exist.
    #[error("there is no cgroup {0}: create it, or correct its name")]
    Missing(PathBuf),
    /// The processes of a cgroup use more memory than its new limit.
    #[error(
        "the processes of cgroup {group} have {in_use} bytes of memory in use, more than the limit of {limit} bytes"
    )]
    MemoryInUse {
        /// The cgroup, from the root of the hierarchy.
        group: PathBuf,
        limit: u64,
        /// The bytes in use.
        in_use: u64,
    },
    /// Processes still run in the cgroup.
    #[error("remove cgroup {0}: processes still run in it")]
    Busy(PathBuf),
    /// systemd has refused, or does not answer.
    #[error("{operation} {unit} with systemd: {reason}")]
    Systemd {
        /// `start`, `change`, `stop`, `reach`.
        operation: &'static str,
        unit: String,
        /// systemd's error.
        reason: String,
    },
    /// The agent is stopping.
    #[error("the agent stopped during a cgroup operation")]
    Stopped,
}

impl CgroupError {
    /// Whether the failure is transient: the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::NotMounted | Self::NoController { .. })
    }

    /// Whether the kernel refused a value or lacks a feature, as opposed to a call without an answer.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Systemd { .. } | Self::Stopped)
    }

    pub(super) fn file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { operation, path: path.to_owned(), source }
    }
}

fn remedy(controller: &str) -> &'static str {
    // Several boards are shipped with it disabled.
    if controller == "memory" { "; boot with cgroup_enable=memory" } else { "" }
}
