//! The agent's side of a pod's [`init`]: starts it, finds it again, ends it.
//!
//! The file `init` of the sandbox has its PID, and is written before the namespace is pinned. Until its release, the
//! init ends with the pipe to the agent, so an agent that is killed leaves none behind.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use super::namespaces::{NamespaceSettings, bind};
use super::{SandboxError, init};
use limpet_model::pod::PodUid;
use limpet_model::sandbox::Namespaces;

/// The file with the pid.
const FILE: &str = "init";
/// How long an init may take to isolate itself, including page faults of the executable from a slow disk.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest report of the init's start, in bytes.
const MAX_REPORT: u64 = 1_024;
/// How long the kernel may take to end the processes of a namespace.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// An init that waits to be moved into the pod's cgroup. It ends if this is dropped, which closes its pipe.
#[derive(Debug)]
pub struct WaitingInit {
    /// In the host's PID namespace.
    pub pid: u32,
    child: Child,
    uid: PodUid,
}

impl WaitingInit {
    /// Lets the init isolate itself; from then on it outlives the agent.
    ///
    /// # Errors
    ///
    /// The init could not isolate itself, and has ended.
    pub async fn release(mut self) -> Result<(), SandboxError> {
        let isolated = tokio::time::timeout(DEADLINE, isolated(&mut self.child)).await;
        let isolated = isolated.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        // The runtime reaps the child when it exits.
        let operation = "isolate the pod's init";
        isolated.map_err(|source| SandboxError::Namespace { uid: self.uid, operation, source })
    }
}

async fn isolated(child: &mut Child) -> io::Result<()> {
    let (Some(stdin), Some(stdout)) = (&mut child.stdin, &mut child.stdout) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    stdin.write_all(b"\n").await?;
    let mut answer = String::new();
    // The init closes the pipe once it is isolated, or writes the error.
    stdout.read_to_string(&mut answer).await?;
    match answer.as_str() {
        "\n" => Ok(()),
        "" => Err(io::ErrorKind::BrokenPipe.into()),
        reason => Err(io::Error::other(reason.trim())),
    }
}

/// Starts an init if the pod shares a PID namespace, as the first process of the namespace that the calling thread
/// has created for its children, or of one in the pod's user namespace; then pins the namespace.
pub(super) fn start(
    runtime: &Handle,
    dir: &Path,
    namespaces: &Namespaces,
    settings: &NamespaceSettings,
) -> Result<Option<WaitingInit>, SandboxError> {
    let Some(pin) = &namespaces.pid else { return Ok(None) };
    let failed_to_start = |source| settings.failed("start the pod's init", source);
    let _entered = runtime.enter();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("limpet").arg(init::ARGUMENT).arg(dir).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed_to_start)?;
    let pid = match namespaces.user {
        Some(_) => runtime.block_on(tokio::time::timeout(DEADLINE, reported_pid(&mut child))),
        None => Ok(child.id().ok_or_else(|| io::ErrorKind::NotFound.into())),
    };
    let pid = pid.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed_to_start)?;
    let file = dir.join(FILE);
    std::fs::write(&file, pid.to_string()).map_err(|source| SandboxError::path("write", &file, source))?;
    bind(Path::new(&format!("/proc/{pid}/ns/pid")), pin)?;
    Ok(Some(WaitingInit { pid, child, uid: settings.uid.clone() }))
}

/// The PID of the init that `child` has started, which it prints, or the error.
async fn reported_pid(child: &mut Child) -> io::Result<u32> {
    let stdout = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut output = String::new();
    BufReader::new(stdout.take(MAX_REPORT)).read_line(&mut output).await?;
    match output.trim() {
        "" => Err(io::ErrorKind::BrokenPipe.into()),
        output => output.parse().map_err(|_| io::Error::other(output.to_owned())),
    }
}

/// Whether the init of the sandbox in `dir` lives.
pub(super) fn is_alive(dir: &Path) -> Result<bool, SandboxError> {
    match find(dir)? {
        Some(pid) => is_init(pid, dir),
        None => Ok(false),
    }
}

/// Kills the init of the sandbox in `dir`, and thereby every process in its namespace. A missing init counts as
/// success.
pub(super) fn end(dir: &Path) -> Result<(), SandboxError> {
    let pid = find(dir)?.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    // The pidfd is opened before the check, so that the PID cannot be reused in between.
    if let Some((pid, process)) = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        && is_init(pid.as_raw_nonzero().get().unsigned_abs(), dir)?
    {
        // It may have exited by itself.
        let _ = pidfd_send_signal(&process, Signal::KILL);
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&EXIT_TIMEOUT)), Ok(1)) {
            return Err(SandboxError::path("end the init of", dir, io::ErrorKind::TimedOut.into()));
        }
    }
    let file = dir.join(FILE);
    super::ignore_not_found(std::fs::remove_file(&file)).map_err(|source| SandboxError::path("remove", &file, source))
}

/// The recorded PID, if any.
fn find(dir: &Path) -> Result<Option<u32>, SandboxError> {
    let file = dir.join(FILE);
    match std::fs::read(&file) {
        Ok(pid) => Ok(String::from_utf8_lossy(&pid).trim().parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SandboxError::path("read", &file, source)),
    }
}

/// Whether the process creates its children in the pinned namespace; false if it has exited.
fn is_init(pid: u32, dir: &Path) -> Result<bool, SandboxError> {
    let pinned = namespace(dir.join("pid"))?;
    Ok(pinned.is_some() && namespace(format!("/proc/{pid}/ns/pid_for_children").into())? == pinned)
}

/// Device and inode of the namespace at `path`; `None` if there is none, because its process has exited.
fn namespace(path: PathBuf) -> Result<Option<(u64, u64)>, SandboxError> {
    match std::fs::metadata(&path) {
        Ok(namespace) => Ok(Some((namespace.dev(), namespace.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(source) => Err(SandboxError::path("stat", &path, source)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_init_whose_record_cannot_be_read_is_not_taken_for_gone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_alive(dir.path()).unwrap());
        end(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(is_alive(dir.path()).is_err() && end(dir.path()).is_err());
    }
}
