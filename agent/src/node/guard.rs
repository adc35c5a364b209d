//! One agent per node: what has to be true before the first side effect, and the lock that keeps it true.
//!
//! Two agents on one node would each stop what the other starts. A second limpet is kept out by locks that the
//! kernel frees when their holder ends, however it ends; a kubelet by its processes and ports.

mod others;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use super::NameError;
use crate::config::{Config, ConfigError};
use limpet_host::peer;
pub use others::{OtherAgent, find as other_agent};

/// The lock's file below the root and the run directory.
const LOCK: &str = "lock";
/// How long a process that was being started when its agent was killed may take to let go of the agent's files.
const HEIRS_EXECUTE: Duration = Duration::from_secs(5);

/// Why the agent does not start. [`exit_code`](Self::exit_code) says which kind it is.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is unreadable or wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node has no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Not started by root.
    #[error("limpet run needs root: it mounts, makes namespaces and cgroups, and speaks to containerd (user id {uid})")]
    NotRoot {
        /// Who started it.
        uid: u32,
    },
    /// A limpet holds the lock.
    #[error("another limpet runs on this node: {holder} holds {path}")]
    Locked {
        /// The lock's file.
        path: PathBuf,
        /// Pid, command line and since when, as far as known.
        holder: String,
    },
    /// A kubelet, or what contains one.
    #[error(
        "another node agent runs on this node: {other}; two agents stop each other's pods. Stop it first, or, for a \
         try beside it on another containerd, set ignoreOtherAgents: true in a LimpetConfiguration"
    )]
    OtherAgent {
        /// What was found.
        other: OtherAgent,
    },
    /// Somebody answers on the agent's own socket.
    #[error("{path} is in use by {holder}")]
    SocketInUse {
        /// The socket.
        path: PathBuf,
        /// Pid and command line, as far as known.
        holder: String,
    },
    /// A directory or lock could not be made.
    #[error("cannot {verb} {path}: {source}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl StartError {
    /// 1: the machine refuses; 2: usage or configuration; 4: not allowed; 5: another agent runs.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Name(NameError::Invalid { .. } | NameError::Differs { .. }) => 2,
            Self::NotRoot { .. } => 4,
            Self::Locked { .. } | Self::OtherAgent { .. } | Self::SocketInUse { .. } => 5,
            Self::Io { source, .. } | Self::Name(NameError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                4
            }
            Self::Io { .. } | Self::Name(NameError::Io { .. }) => 1,
        }
    }
}

/// This agent is the node's only one for as long as this value lives.
#[derive(Debug)]
pub struct NodeLock {
    _root: Lock,
    _run: Lock,
}

/// A locked file. Unlocked when it goes, not only closed: a child between fork and exec has it open, too.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = flock(&self.0, FlockOperation::Unlock) {
            tracing::debug!(%error, "the lock goes when the last process that has it open ends");
        }
    }
}

/// Makes the root and run directories, takes both locks, and refuses to share the node with another agent.
/// To be held until the process ends.
///
/// # Errors
/// Not root, another agent, or a directory that cannot be made: see [`StartError::exit_code`].
pub fn guard(config: &Config) -> Result<NodeLock, StartError> {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Err(StartError::NotRoot { uid: uid.as_raw() });
    }
    let lock = lock_node(config)?;
    if let Some(other) = others::find() {
        if !config.ignore_other_agents {
            return Err(StartError::OtherAgent { other });
        }
        tracing::warn!(%other, "another node agent runs on this node, ignored as configured");
    }
    Ok(lock)
}

fn lock_node(config: &Config) -> Result<NodeLock, StartError> {
    let root = lock(&config.root_dir)?;
    let run = lock(&config.run_dir)?;
    refuse_busy_socket(&config.socket())?;
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
        Err(Errno::WOULDBLOCK) if signer(&mut file).is_none_or(|(pid, _)| !runs(pid)) => wait_for_heirs(&file),
        taken => taken,
    };
    match taken {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(StartError::Locked { holder: holder(&mut file), path }),
        Err(error) => return Err(failed("lock", &path, error.into())),
    }
    // Not synced: who holds the lock matters only while it is held.
    let sign = |file: &mut File| {
        file.set_len(0)?;
        file.write_all(format!("{} {}\n", std::process::id(), Timestamp::now()).as_bytes())
    };
    if let Err(error) = sign(&mut file) {
        tracing::warn!(%error, path = %path.display(), "the lock is held, but does not name its holder");
    }
    Ok(Lock(file))
}

/// The file, also under an earlier agent's strict guard, which does not know this executable: it may be locked then, not
/// signed.
fn open_lock(path: &Path) -> io::Result<File> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// Waits for a lock whose owner is gone: a child of a killed agent has it open until it executes its program.
fn wait_for_heirs(file: &File) -> Result<(), Errno> {
    let file = file.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let (taken, outcome) = mpsc::channel();
    // flock has no time limit. When the wait is given up the agent ends, and this thread with it.
    std::thread::spawn(move || taken.send(retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))));
    outcome.recv_timeout(HEIRS_EXECUTE).unwrap_or(Err(Errno::WOULDBLOCK))
}

/// Who signed the lock: pid, and since when.
fn signer(file: &mut File) -> Option<(u32, String)> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.take(128).read_to_string(&mut text)).ok()?;
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
}

/// Who signed the lock: pid, command line, since when.
fn holder(file: &mut File) -> String {
    match signer(file) {
        Some((pid, since)) => format!("{}, since {since}", process(pid)),
        None => "a process that has not signed it".to_owned(),
    }
}

/// The command line of a process; empty when it cannot be seen from here, or has ended and waits for its parent.
fn command_line(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned()
}

fn runs(pid: u32) -> bool {
    !command_line(pid).is_empty()
}

/// `pid 7 (limpet run)`, or the pid alone when it cannot be seen from here.
fn process(pid: u32) -> String {
    match command_line(pid).as_str() {
        "" => format!("pid {pid}"),
        command => format!("pid {pid} ({})", command.chars().take(200).collect::<String>()),
    }
}

fn refuse_busy_socket(path: &Path) -> Result<(), StartError> {
    let holder = match peer::pid(path) {
        Err(_) => return Ok(()),
        // A child of a killed agent has it open until it executes its program: nobody answers there.
        Ok(Some(pid)) if !runs(pid) => return Ok(()),
        Ok(Some(pid)) => process(pid),
        Ok(None) => "a process of another pid namespace".to_owned(),
    };
    Err(StartError::SocketInUse { path: path.to_owned(), holder })
}

#[cfg(test)]
mod tests;
