//! The process at the other end of a Unix socket, as the kernel reports it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process_cgroup::{self, ProcessCgroupError};

/// The process that connected a stream. Clones share its pidfd.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its PID; `None` if it is in another PID namespace.
    pub pid: Option<u32>,
    handle: Handle,
}

/// Identifies the process in addition to its PID.
#[derive(Debug, Clone)]
enum Handle {
    Pidfd(Arc<OwnedFd>),
    /// It had already exited.
    Exited,
    /// The kernel, or a seccomp filter, does not provide a pidfd.
    Unsupported,
}

impl Peer {
    /// The process that connected `stream`. Does not block.
    ///
    /// Linux 6.5 identifies the process that connected. Before that, its PID is looked up now, and may have been
    /// reused.
    ///
    /// # Errors
    ///
    /// `stream` is not a connected Unix socket, or the agent has no file descriptor left.
    pub fn connected_to(stream: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        // 0 means another PID namespace.
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0);
        let handle = match getsockopt(stream, PeerPidfd) {
            Ok(pidfd) => Handle::Pidfd(Arc::new(pidfd)),
            Err(nix::Error::ENOPROTOOPT) => Self::open(pid)?,
            Err(error @ (nix::Error::EMFILE | nix::Error::ENFILE)) => return Err(error.into()),
            Err(_) => Handle::Exited,
        };
        Ok(Self { uid: credentials.uid(), pid, handle })
    }

    fn open(pid: Option<u32>) -> io::Result<Handle> {
        let Some(pid) = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) else {
            return Ok(Handle::Exited);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Handle::Pidfd(Arc::new(pidfd))),
            Err(Errno::NOSYS | Errno::PERM) => Ok(Handle::Unsupported),
            Err(error @ (Errno::MFILE | Errno::NFILE)) => Err(error.into()),
            Err(_) => Ok(Handle::Exited),
        }
    }

    /// Its pidfd, if there is one.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        if let Handle::Pidfd(pidfd) = &self.handle { Some(pidfd.as_fd()) } else { None }
    }

    /// The paths of its cgroups, one per hierarchy, from that hierarchy's root. Blocks.
    ///
    /// # Errors
    ///
    /// The process has exited or is in another PID namespace, or `/proc` does not show its cgroups.
    pub fn cgroups(&self) -> Result<Vec<String>, ProcessCgroupError> {
        match (self.pid, &self.handle) {
            (Some(pid), Handle::Pidfd(_) | Handle::Unsupported) => process_cgroup::cgroups(pid, self.pidfd()),
            (pid, _) => Err(ProcessCgroupError::Exited { pid: pid.unwrap_or_default() }),
        }
    }
}

/// The process that listens on `socket` (`SO_PEERCRED`); `None` if it is in another PID namespace. Does not block.
///
/// # Errors
///
/// No process listens there, or the agent may not connect.
pub fn pid(socket: &Path) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    Ok(u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_listener_is_known_by_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("it.sock");
        assert_eq!(pid(&socket).unwrap_err().kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(pid(&socket).unwrap(), Some(std::process::id()));
    }

    #[test]
    fn a_peer_has_its_cgroups_until_it_has_exited() {
        let (stream, other) = UnixStream::pair().unwrap();
        let peer = Peer::connected_to(&stream).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(std::process::id()), rustix::process::geteuid().as_raw()));
        assert_eq!(peer.cgroups().unwrap(), process_cgroup::cgroups(std::process::id(), None).unwrap());
        drop(other);

        // A process connects, passes its connection to a child and exits. The child must not be identified as the
        // peer.
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("it.sock")).unwrap();
        let mut connects = Command::new(std::env::current_exe().unwrap());
        connects.args(["--exact", "--nocapture", "peer::tests::connects_and_exits"]);
        let mut child = connects.env(CONNECT, dir.path().join("it.sock")).stdout(Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let early = Peer::connected_to(&stream).unwrap();
        child.wait().unwrap();
        let late = Peer::connected_to(&stream).unwrap();
        for peer in [early, late] {
            let error = peer.cgroups().unwrap_err();
            assert!(!matches!(error, ProcessCgroupError::Unusable { .. }), "{error}");
        }
        assert_eq!(Peer { pid: None, ..peer }.cgroups().unwrap_err().to_string(), "process 0 has exited");
    }

    /// The socket for the next test, which does nothing without it.
    const CONNECT: &str = "LIMPET_TEST_CONNECT";

    #[test]
    fn connects_and_exits() {
        let Some(path) = std::env::var_os(CONNECT) else { return };
        let stream = UnixStream::connect(path).unwrap();
        let child = Command::new("true").stdin(std::os::fd::OwnedFd::from(stream)).stdout(Stdio::null()).spawn();
        child.unwrap().wait().unwrap();
    }
}
