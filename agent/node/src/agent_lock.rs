//! Ensures one agent per node: the checks before the first side effect, and the lock that keeps other agents out.
//!
//! Two agents on one node would stop each other's pods. File locks keep a second limpet out, which the kernel
//! releases however their holder exits; a kubelet is detected by its processes and ports.

mod agent_conflicts;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::kernel_settings::{self, KernelError};
use crate::settings::NodeSettings;
pub use agent_conflicts::{OtherAgent, find as other_agent};
use limpet_host::peer;

/// The lock file in the root and the run directory.
const LOCK: &str = "lock";
/// How long a child of a killed agent may hold its inherited files until it calls `execve`.
const EXEC_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the agent does not start. [`exit_code`](Self::exit_code) depends on the kind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The user is not root.
    #[error(
        "limpet run needs root, to mount, to create namespaces and cgroups, and to call containerd (user id {uid}); use sudo"
    )]
    NotRoot { uid: u32 },
    /// The kernel's settings violate the configuration.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Another limpet holds the lock.
    #[error("another limpet runs on this node: {holder} holds {path}")]
    Locked {
        path: PathBuf,
        /// The holder's PID, command line and start of the lock, as far as known.
        holder: String,
    },
    /// A kubelet, or a program that contains one.
    #[error(
        "another node agent runs on this node: {other}; two agents stop each other's pods. Stop it first, or, for a \
         trial next to it on another containerd, set ignoreOtherAgents: true in a LimpetConfiguration"
    )]
    OtherAgent { other: OtherAgent },
    /// A process serves the agent's own socket.
    #[error("{path} is in use by {holder}")]
    SocketInUse {
        path: PathBuf,
        /// PID and command line, as far as known.
        holder: String,
    },
    /// A directory or lock could not be created.
    #[error("cannot {verb} {path}: {source}")]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
}

impl StartError {
    /// 1: an error of the machine; 4: permission denied; 5: another agent runs.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotRoot { .. } => 4,
            Self::Locked { .. } | Self::OtherAgent { .. } | Self::SocketInUse { .. } => 5,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 4,
            Self::Kernel(_) | Self::Io { .. } => 1,
        }
    }
}

/// Holds the node for this agent while this value lives.
#[derive(Debug)]
pub struct NodeLock {
    _root: Lock,
    _run: Lock,
}

/// A locked file. Unlocked explicitly on drop, because a child between fork and exec also has it open.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = flock(&self.0, FlockOperation::Unlock) {
            tracing::debug!(%error, "releasing the lock failed; it is released when the last process that has it open exits");
        }
    }
}

/// The resources that an agent needs exclusively.
#[derive(Debug, Clone)]
pub struct AgentPlaces {
    pub root_dir: PathBuf,
    pub run_dir: PathBuf,
    /// The local socket.
    pub socket: PathBuf,
    /// The parent of `kubepods`; processes in it belong to pods, and are no other agents.
    pub cgroup_root: PathBuf,
}

/// Creates the root and run directories, takes both locks, and fails if another agent runs on the node. Hold the
/// result until the process exits.
///
/// # Errors
///
/// Not root, another agent, kernel settings that violate the configuration, or a directory that cannot be created:
/// see [`StartError::exit_code`].
pub fn take(places: &AgentPlaces, settings: &NodeSettings) -> Result<NodeLock, StartError> {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Err(StartError::NotRoot { uid: uid.as_raw() });
    }
    let lock = lock_node(places)?;
    if let Some(other) = agent_conflicts::find(&places.cgroup_root) {
        if !settings.ignore_other_agents {
            return Err(StartError::OtherAgent { other });
        }
        tracing::warn!(%other, "another node agent runs on this node, ignored as configured");
    }
    kernel_settings::demand(&settings.kernel)?;
    Ok(lock)
}

fn lock_node(places: &AgentPlaces) -> Result<NodeLock, StartError> {
    let root = lock(&places.root_dir)?;
    let run = lock(&places.run_dir)?;
    check_socket(&places.socket)?;
    Ok(NodeLock { _root: root, _run: run })
}

fn lock(directory: &Path) -> Result<Lock, StartError> {
    let failed = |verb, path: &Path, source| StartError::Io { verb, path: path.to_owned(), source };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|source| failed("make", directory, source))?;
    let path = directory.join(LOCK);
    let mut file = open_lock(&path).map_err(|source| failed("open", &path, source))?;
    let taken = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) if recorded_holder(&mut file).is_none_or(|(pid, _)| !runs(pid)) => {
            wait_for_children(&file)
        }
        taken => taken,
    };
    match taken {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(StartError::Locked { holder: holder(&mut file), path }),
        Err(error) => return Err(failed("lock", &path, error.into())),
    }
    // Not synced, because the holder's name matters only while the lock is held.
    let sign = |file: &mut File| {
        file.set_len(0)?;
        file.write_all(format!("{} {}\n", std::process::id(), Timestamp::now()).as_bytes())
    };
    if let Err(error) = sign(&mut file) {
        tracing::warn!(%error, path = %path.display(), "the lock is held, but does not name its holder");
    }
    Ok(Lock(file))
}

/// Opens the file. If an earlier agent's strict guard denies writing to this executable, or the file system is
/// read-only, the file or its directory can still be locked, but the holder's name cannot be written.
fn open_lock(path: &Path) -> io::Result<File> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => match File::open(path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => File::open(path.parent().ok_or(error)?),
            opened => opened,
        },
        opened => opened,
    }
}

/// Waits for the lock of an exited agent, which a child of a killed agent holds until it calls `execve`.
fn wait_for_children(file: &File) -> Result<(), Errno> {
    let file = file.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let (taken, outcome) = mpsc::channel();
    // flock has no timeout. If the wait is abandoned, the agent exits, and this thread with it.
    std::thread::spawn(move || taken.send(retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))));
    outcome.recv_timeout(EXEC_TIMEOUT).unwrap_or(Err(Errno::WOULDBLOCK))
}

/// The recorded holder of the lock: PID, and since when.
fn recorded_holder(file: &mut File) -> Option<(u32, String)> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.take(128).read_to_string(&mut text)).ok()?;
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
}

/// The holder of the lock: PID, command line, since when.
fn holder(file: &mut File) -> String {
    match recorded_holder(file) {
        Some((pid, since)) => format!("{}, since {since}", process(pid)),
        None => "a process that has not signed it".to_owned(),
    }
}

/// The command line of a process; empty for an invisible process or a zombie.
fn command_line(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned()
}

fn runs(pid: u32) -> bool {
    !command_line(pid).is_empty()
}

/// `pid 7 (limpet run)`, or only the PID of an invisible process.
fn process(pid: u32) -> String {
    match command_line(pid).as_str() {
        "" => format!("pid {pid}"),
        command => format!("pid {pid} ({})", command.chars().take(200).collect::<String>()),
    }
}

fn check_socket(path: &Path) -> Result<(), StartError> {
    let holder = match peer::pid(path) {
        Err(_) => return Ok(()),
        // A child of a killed agent may have it open until it calls `execve`: no process serves it.
        Ok(Some(pid)) if !runs(pid) => return Ok(()),
        Ok(Some(pid)) => process(pid),
        Ok(None) => "a process of another pid namespace".to_owned(),
    };
    Err(StartError::SocketInUse { path: path.to_owned(), holder })
}

#[cfg(test)]
mod tests;
