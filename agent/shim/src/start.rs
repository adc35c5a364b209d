//! `start`: finds or starts the shim of the container's group, and reports its address to containerd.

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

/// containerd's directory for shims' sockets.
const SOCKETS: &str = "/run/containerd/s";
/// The file with the shim's address in a bundle, which containerd 1.7 reads when it starts.
const ADDRESS_FILE: &str = "address";
/// The variable with the newest protocol version that containerd supports.
const MAX_VERSION: &str = "MAX_SHIM_VERSION";
/// The newest protocol version of this shim; it also supports the previous one.
const VERSION: u32 = 3;
/// The most bytes of options that are read.
const MAX_OPTIONS: u64 = 1 << 20;

/// Starts the shim, and returns the output for containerd.
pub(crate) fn start(arguments: &Arguments, bundle: &Path) -> io::Result<String> {
    let spec = Spec::read(bundle)?;
    fs::create_dir_all(SOCKETS)?;
    let socket = socket_path(arguments, spec.group(&arguments.id));
    // Two containers of a group that start at once share one shim.
    let _lock = lock_sockets(&socket)?;
    let address = format!("unix://{}", socket.display());
    if UnixStream::connect(&socket).is_err() {
        // Left by a shim that was killed.
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

/// The output for containerd: before protocol version 3, only the address.
fn bootstrap(address: &str, max_version: u32) -> String {
    if max_version < VERSION {
        return address.to_owned();
    }
    format!(r#"{{"version":{VERSION},"address":"{address}","protocol":"ttrpc"}}"#)
}

/// The socket of a group's shim. It differs from that of containerd's own shim for the same group, because both may
/// serve a pod.
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

/// Listens again on the address that the shim has given up.
///
/// # Errors
///
/// `AddrInUse`: another shim of the group uses it.
pub(crate) fn listen_again(socket: &Path) -> io::Result<UnixListener> {
    let _lock = lock_sockets(socket)?;
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Starts the process that serves on `socket`: the same program, without an action, with the socket as stdin.
fn start_server(arguments: &Arguments, socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["-namespace", &arguments.namespace, "-id", &arguments.id, "-address", &arguments.address]);
    command.arg("-socket").arg(socket);
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut server = command.spawn()?;
    let cgroup = shim_cgroup();
    if !cgroup.is_empty()
        && let Err(error) = cgroup::join(&cgroup, server.id())
    {
        // It would serve nothing, for ever.
        let _ = server.kill();
        let _ = server.wait();
        return Err(error);
    }
    Ok(())
}

/// The cgroup for shims in the container's options.
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
