//! `start`: finds the shim of the container's group or starts it, and tells containerd its address.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message as _;
use prost_types::Any;
use rustix::fs::FlockOperation;
use sha2::{Digest as _, Sha256};

use crate::arguments::Arguments;
use crate::bundle::Spec;
use crate::cgroup;
use crate::messages::Options;

/// The directory of shims' sockets, which is containerd's.
const SOCKETS: &str = "/run/containerd/s";
/// The file with the shim's address in a bundle, which containerd 1.7 reads when it starts.
const ADDRESS_FILE: &str = "address";
/// The variable with the newest version of the protocol that containerd speaks.
const MAX_VERSION: &str = "MAX_SHIM_VERSION";
/// The newest version that this shim speaks, besides the one before it.
const VERSION: u32 = 3;
/// The longest options that are read.
const MAX_OPTIONS: u64 = 1 << 20;

/// Starts the shim, and returns what containerd is to read.
pub(crate) fn start(arguments: &Arguments, bundle: &Path) -> io::Result<String> {
    let spec = Spec::read(bundle)?;
    fs::create_dir_all(SOCKETS)?;
    let socket = socket_path(arguments, spec.group(&arguments.id));
    // Two containers of a group that start at once get one shim.
    let _lock = lock_sockets(&socket)?;
    let address = format!("unix://{}", socket.display());
    if UnixStream::connect(&socket).is_err() {
        // Of a shim that was killed.
        let _ = fs::remove_file(&socket);
        let started = start_server(arguments, &socket);
        if let Err(error) = started {
            let _ = fs::remove_file(&socket);
            return Err(error);
        }
    }
    fs::write(bundle.join(ADDRESS_FILE), &address)?;
    let max_version = std::env::var(MAX_VERSION).ok().and_then(|version| version.parse::<u32>().ok());
    Ok(bootstrap(&address, max_version.unwrap_or(2)))
}

/// What containerd reads: before version 3 of the protocol, the address alone.
fn bootstrap(address: &str, max_version: u32) -> String {
    if max_version < VERSION {
        return address.to_owned();
    }
    format!(r#"{{"version":{VERSION},"address":"{address}","protocol":"ttrpc"}}"#)
}

/// The socket of a group's shim. containerd's own shim has another one for the same group: both may serve a pod.
fn socket_path(arguments: &Arguments, group: &str) -> PathBuf {
    let mut hash = Sha256::new();
    for part in ["limpet", &arguments.address, &arguments.namespace, group] {
        hash.update(part);
        hash.update([0]);
    }
    let name: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new(SOCKETS).join(name)
}

/// Locks the directory of a socket until the lock is dropped or its process ends.
fn lock_sockets(socket: &Path) -> io::Result<File> {
    let directory = File::open(socket.parent().unwrap_or(Path::new(SOCKETS)))?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Listens at the shim's address again, which it has given up.
///
/// # Errors
/// `AddrInUse`: another shim of the group has it.
pub(crate) fn listen_again(socket: &Path) -> io::Result<UnixListener> {
    let _lock = lock_sockets(socket)?;
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Starts the process that serves at `socket`: the same program, without an action, with the socket as its input.
fn start_server(arguments: &Arguments, socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["-namespace", &arguments.namespace, "-id", &arguments.id, "-address", &arguments.address]);
    command.arg("-socket").arg(socket);
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let server = command.spawn()?;
    let cgroup = shim_cgroup();
    if !cgroup.is_empty() {
        cgroup::join(&cgroup, server.id())?;
    }
    Ok(())
}

/// The cgroup for shims that the container's options name.
fn shim_cgroup() -> String {
    let mut input = Vec::new();
    // Without options there is nothing to read.
    let _ = io::stdin().take(MAX_OPTIONS).read_to_end(&mut input);
    let options = Any::decode(&*input).and_then(|any| Options::decode(&*any.value));
    options.map(|options| options.shim_cgroup).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn containerd_is_told_the_version_it_speaks() {
        assert_eq!(bootstrap("unix:///s", 2), "unix:///s");
        assert_eq!(bootstrap("unix:///s", 3), r#"{"version":3,"address":"unix:///s","protocol":"ttrpc"}"#);
    }

    #[test]
    fn an_address_is_taken_again_unless_another_shim_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let first = listen_again(&socket).unwrap();
        assert!(UnixStream::connect(&socket).is_ok() && first.accept().is_ok());
        assert_eq!(listen_again(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn each_group_of_each_containerd_has_its_socket() {
        let arguments = |address: &str| Arguments { address: address.into(), ..Arguments::default() };
        let path = socket_path(&arguments("/run/a.sock"), "pod");
        assert_eq!(path, socket_path(&arguments("/run/a.sock"), "pod"));
        assert_ne!(path, socket_path(&arguments("/run/b.sock"), "pod"));
        assert_ne!(path, socket_path(&arguments("/run/a.sock"), "other"));
        assert!(path.as_os_str().len() < 100, "a socket's path is short");
    }
}
