//! The process at the other end of a Unix socket, as the kernel reports it.

use std::io;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The process that listens on `socket` (`SO_PEERCRED`); `None` when it is of another pid namespace. Does not block.
///
/// # Errors
/// No process listens there, or the agent may not connect.
pub fn pid(socket: &Path) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    Ok(u32::try_from(peer.pid.as_raw_nonzero().get()).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listener_is_known_by_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("it.sock");
        assert_eq!(pid(&socket).unwrap_err().kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(pid(&socket).unwrap(), Some(std::process::id()));
    }
}
