//! What the kernel knows of a process that has just changed a file, and may have exited already.
//!
//! The pidfd came with the event, so it refers to that process. Because pids are reused, what `/proc/<pid>` shows
//! counts only if the process still had that pid afterwards.
//!
//! Everything is read at once, while the process still exists. procfs does not block, and `/etc/passwd` is on the
//! root file system: if that hangs, no program runs.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::cgroup_path;
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchObserver;

/// Longest text that a process can choose, in bytes; the rest is cut.
const MAX_TEXT: usize = 256;
/// How many bytes of `/etc/passwd` are read at most.
const MAX_PASSWD: u64 = 1 << 20;
/// The size of the first version of `struct pidfd_info` (`linux/pidfd.h`, Linux 6.15).
const INFO_SIZE: usize = 64;
const INFO: Opcode = opcode::read_write::<[u8; INFO_SIZE]>(0xff, 11);
const HAS_CREDENTIALS: u64 = 1 << 1;
const HAS_CGROUP: u64 = 1 << 2;

/// Identifies the process behind `pidfd`.
pub fn actor(pid: u32, pidfd: BorrowedFd<'_>, observer: &dyn WatchObserver) -> Actor {
    let info = pidfd_info(pidfd).unwrap_or_default();
    let read = Some(Facts::read(pid)).filter(|_| number(pidfd) == Some(pid)).unwrap_or_default();
    let uid = read.uid.or(info.uid);
    let mut cgroups = read.cgroups;
    if cgroups.is_empty() {
        cgroups.extend(info.cgroup_id.and_then(cgroup_path::path_of).map(|path| bounded(&path)));
    }
    let resident = cgroups.iter().find_map(|path| observer.resident(path));
    Actor {
        pid: Some(pid),
        parent: read.parent.or(info.parent),
        uid,
        user: uid.and_then(user),
        command: read.command,
        executable: read.executable,
        // With cgroup v1 there are several; the longest path is the most specific.
        cgroup: cgroups.into_iter().max_by_key(String::len).filter(|path| path != "/"),
        resident,
    }
}

/// The process's pid in this pid namespace; `None` once it has been reaped.
pub(super) fn number(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

/// What is known about a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    parent: Option<u32>,
    uid: Option<u32>,
    command: Option<String>,
    executable: Option<String>,
    /// Its path in each hierarchy.
    cgroups: Vec<String>,
    /// The id of its v2 cgroup.
    cgroup_id: Option<u64>,
}

impl Facts {
    /// Reads `/proc/<pid>`.
    fn read(pid: u32) -> Self {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let number = |name: &str| field(name)?.split_whitespace().next()?.parse().ok();
        Self {
            parent: number("PPid:").filter(|parent| *parent != 0),
            uid: number("Uid:"),
            command: field("Name:").map(bounded),
            executable: fs::read_link(format!("/proc/{pid}/exe")).ok().map(|path| bounded(&path.to_string_lossy())),
            cgroups: paths(&String::from_utf8_lossy(&read("cgroup"))),
            cgroup_id: None,
        }
    }
}

/// The paths in `/proc/<pid>/cgroup`, whose lines are `<number>:<controllers>:<path>`.
fn paths(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(bounded).collect()
}

/// A text that a process has chosen, truncated and without control characters.
pub(super) fn bounded(text: &str) -> String {
    let mut bounded = String::new();
    for c in text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }) {
        if bounded.len() + c.len_utf8() > MAX_TEXT {
            break;
        }
        bounded.push(c);
    }
    bounded
}

/// Reads the pidfd (Linux 6.15), which also works if the process has exited but has not been reaped.
fn pidfd_info(pidfd: BorrowedFd<'_>) -> Option<Facts> {
    let mut info = [0_u8; INFO_SIZE];
    info[..8].copy_from_slice(&(HAS_CREDENTIALS | HAS_CGROUP).to_ne_bytes());
    // SAFETY: the opcode contains the size of the buffer, and the kernel writes no more than that, only plain
    // numbers. If the opcode is not known, or the descriptor is not a pidfd, the call fails.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(pidfd.as_fd(), Updater::<INFO, _>::new(&mut info)).ok()?;
    }
    let wide = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    let narrow = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
    let mask = wide(0)?;
    Some(Facts {
        cgroup_id: wide(8).filter(|id| mask & HAS_CGROUP != 0 && *id != 0),
        parent: narrow(24).filter(|parent| *parent != 0),
        uid: narrow(28).filter(|_| mask & HAS_CREDENTIALS != 0),
        ..Facts::default()
    })
}

/// The user's name on the node, from `/etc/passwd` only, because a static program has no name service.
pub(super) fn user(uid: u32) -> Option<String> {
    let mut passwd = String::new();
    File::open("/etc/passwd").ok()?.take(MAX_PASSWD).read_to_string(&mut passwd).ok()?;
    user_name(&passwd, uid)
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| bounded(name))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// A process that is killed at the end of its test.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn new() -> (Self, std::os::fd::OwnedFd) {
            let mut shell = Command::new("sh");
            shell.args(["-c", "echo ready; read never"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            // Once it has written, its exec is complete.
            child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            (Self(child), pidfd)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).unwrap();
        }
    }

    #[test]
    fn a_running_process_is_fully_known_and_a_reaped_one_is_not_looked_up_by_pid() {
        let (sleeper, pidfd) = Sleeper::new();
        let pid = sleeper.0.id();
        let alive = actor(pid, pidfd.as_fd(), &());
        assert_eq!((alive.pid, alive.parent), (Some(pid), Some(std::process::id())));
        assert_eq!(alive.uid, Some(rustix::process::getuid().as_raw()));
        assert_eq!(alive.command.as_deref(), Some("sh"));
        assert!(alive.executable.unwrap().contains('/'), "the program's path");
        drop(sleeper);
        assert_eq!(number(pidfd.as_fd()), None);
        // The pid may belong to another process now, so only its own pidfd may provide more than the pid.
        let gone = actor(pid, pidfd.as_fd(), &());
        assert_eq!((gone.pid, gone.command, gone.executable, gone.cgroup), (Some(pid), None, None, None));
    }

    #[test]
    fn a_pid_of_another_process_yields_nothing() {
        let (_sleeper, pidfd) = Sleeper::new();
        let wrong = actor(std::process::id(), pidfd.as_fd(), &());
        assert_eq!((wrong.command, wrong.executable), (None, None), "the pidfd does not belong to the pid");
    }

    #[test]
    fn texts_of_processes_are_truncated_and_hold_no_control_characters() {
        assert_eq!(bounded("a\nb\u{1b}[31m"), "a\u{fffd}b\u{fffd}[31m");
        assert!(bounded(&"é".repeat(1_000)).len() <= MAX_TEXT);
        assert_eq!(paths("12:memory:/kubepods/pod1/c\n0::/x:y\nodd\n"), ["/kubepods/pod1/c", "/x:y"]);
        let passwd = "root:x:0:0::/root:/bin/sh\nodd\nansible:x:1001:1001::/:/bin/sh\n";
        assert_eq!((user_name(passwd, 1_001).as_deref(), user_name(passwd, 7)), (Some("ansible"), None));
    }
}
