//! The cgroups of one process, or the reason why they are unknown; never those of another process.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::process::has_exited;

/// The most bytes of `/proc/<pid>/cgroup` that are read: a dozen hierarchies with paths of up to 4 KiB.
const MAX_CGROUPS: u64 = 128 << 10;
/// The most bytes of `/proc/<pid>/stat` that are read; it is a line of numbers and a short name.
const MAX_STAT: u64 = 4 << 10;
/// `PF_EXITING` (`linux/sched.h`): the process is exiting, or has exited and was not reaped.
const PF_EXITING: u64 = 0x4;

/// Why the cgroups of a process are not known.
#[derive(Debug, thiserror::Error)]
pub enum ProcessCgroupError {
    /// Its entry in `/proc` cannot be read.
    #[error("read /proc/{pid}/{file}")]
    Read {
        pid: u32,
        /// The file; empty for the directory.
        file: &'static str,
        #[source]
        source: io::Error,
    },
    /// The process has exited: the kernel shows an exited process in the root of v1 hierarchies.
    #[error("process {pid} has exited")]
    Exited { pid: u32 },
    /// The kernel listed no cgroup, or too many.
    #[error("/proc/{pid}/cgroup has no usable content")]
    Unusable { pid: u32 },
}

/// The paths of a living process's cgroups, one per hierarchy, from that hierarchy's root. Blocks.
///
/// `pidfd` identifies the process: with it the PID counts only while it belongs to that process.
///
/// # Errors
///
/// The process has exited, or `/proc` does not show its cgroups.
pub fn cgroups(pid: u32, pidfd: Option<BorrowedFd<'_>>) -> Result<Vec<String>, ProcessCgroupError> {
    let failed = |file, error: rustix::io::Errno| ProcessCgroupError::Read { pid, file, source: error.into() };
    let directory = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    // This directory keeps referring to one process, even if its PID is reused.
    let process = rustix::fs::open(format!("/proc/{pid}"), directory, Mode::empty()).map_err(|e| failed("", e))?;
    let text = read(pid, &process, "cgroup", MAX_CGROUPS)?;
    // Checked after the cgroups: a process that is not exiting now was not exiting when they were read.
    if is_exiting(&read(pid, &process, "stat", MAX_STAT)?) || pidfd.is_some_and(has_exited) {
        return Err(ProcessCgroupError::Exited { pid });
    }
    paths(&text).ok_or(ProcessCgroupError::Unusable { pid })
}

/// The user a process runs as (its effective UID). Blocks.
///
/// # Errors
/// The process has exited.
pub fn effective_uid(pid: u32) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = uids.and_then(|uids| uids.split_whitespace().nth(1)?.parse().ok());
    effective.ok_or_else(|| io::Error::other("no Uid in the status"))
}

fn read(pid: u32, process: &OwnedFd, file: &'static str, limit: u64) -> Result<String, ProcessCgroupError> {
    let failed = |source| ProcessCgroupError::Read { pid, file, source };
    let opened = openat(process, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut bytes = Vec::new();
    File::from(opened.map_err(|error| failed(error.into()))?).take(limit).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 == limit {
        true => Err(ProcessCgroupError::Unusable { pid }),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Whether `stat` shows a process that is exiting; true for text that cannot be parsed.
fn is_exiting(stat: &str) -> bool {
    // The name, in parentheses, may contain anything.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

/// The paths in `/proc/<pid>/cgroup`: `<number>:<controllers>:<path>` per line. `None` if a line has another form, or
/// the file is empty.
fn paths(text: &str) -> Option<Vec<String>> {
    let path = |line: &str| line.splitn(3, ':').nth(2).filter(|path| path.starts_with('/')).map(str::to_owned);
    let paths: Vec<String> = text.lines().map(path).collect::<Option<_>>()?;
    (!paths.is_empty()).then_some(paths)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, WaitIdOptions, pidfd_open, waitid};

    use super::*;

    #[test]
    fn a_living_process_has_cgroups_and_an_exited_one_has_none_before_and_after_it_is_reaped() {
        let mut child = Command::new("sh").args(["-c", "read never"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let cgroups_of_self = cgroups(std::process::id(), None).unwrap();
        assert_eq!(cgroups(pid, Some(pidfd.as_fd())).unwrap(), cgroups_of_self);
        assert_eq!(effective_uid(pid).unwrap(), rustix::process::geteuid().as_raw());

        child.kill().unwrap();
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(rustix::process::WaitId::Pid(Pid::from_child(&child)), exited).unwrap();
        for pidfd in [Some(pidfd.as_fd()), None] {
            let error = cgroups(pid, pidfd).unwrap_err();
            assert!(matches!(error, ProcessCgroupError::Exited { .. }), "a zombie: {error}");
        }
        child.wait().unwrap();
        assert!(cgroups(pid, None).is_err());
    }

    #[test]
    fn a_pid_that_belongs_to_another_process_now_yields_nothing() {
        let mut child = Command::new("true").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        // This process plays the one that got the reused PID.
        let error = cgroups(std::process::id(), Some(pidfd.as_fd())).unwrap_err();
        assert!(matches!(error, ProcessCgroupError::Exited { .. }), "{error}");
    }

    #[test]
    fn only_whole_texts_count() {
        assert_eq!(paths("12:memory:/kubepods/pod1/c\n0::/x:y\n").unwrap(), ["/kubepods/pod1/c", "/x:y"]);
        for text in ["", "\n", "0::/a\nodd\n", "0::a\n"] {
            assert_eq!(paths(text), None, "{text:?}");
        }
        for (stat, exiting) in [
            ("7 (sh) S 1 7 7 0 -1 4194304 5 6\n", false),
            ("7 (sh) Z 1 7 7 0 -1 4194308 5 6\n", true),
            ("7 (a) S 1 7 7 0 -1 0 (b) S 1 7 7 0 -1 4 5 6\n", true),
            ("7 (sh) S 1\n", true),
            ("", true),
        ] {
            assert_eq!(is_exiting(stat), exiting, "{stat:?}");
        }
    }
}
