//! The process that serves a group of containers, by default a pod's: serves on the socket with which it was started,
//! until the last container is deleted.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::arguments::Arguments;
use crate::publisher::Publisher;
use crate::shim::{Parts, Shim};

/// The variable with containerd's ttrpc socket.
const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";
/// The highest value of `oom_score_adj`.
const MAX_OOM_SCORE_ADJ: i32 = 1_000;

/// Serves on the socket that is this process's stdin.
pub(crate) fn serve(arguments: &Arguments, bundle: &Path) -> io::Result<()> {
    let listener = UnixListener::from(take_input()?);
    let socket = listener.local_addr()?.as_pathname().map(PathBuf::from);
    let socket =
        socket.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "standard input is not the shim's socket"))?;
    // Orphaned processes of containers become its children, so that it learns their exits.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    give_way_to_containerd();
    // Otherwise the bundle would stay busy.
    rustix::process::chdir("/")?;
    let address = std::env::var_os(TTRPC_ADDRESS).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let parts = Parts {
        listener,
        signals: signals()?,
        socket: socket.clone(),
        namespace: arguments.namespace.clone(),
        first_bundle: bundle.to_owned(),
        publisher: Publisher::new(address, &arguments.namespace),
    };
    let served = Shim::new(parts).and_then(|mut shim| shim.run());
    if let Err(error) = &served {
        crate::diagnostics::warn(bundle, &format!("the shim ends: {error}"));
    }
    served
}

/// Takes the descriptor of stdin, and replaces stdin with `/dev/null`.
fn take_input() -> io::Result<OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    rustix::stdio::dup2_stdin(&fs::File::open("/dev/null")?)?;
    Ok(taken)
}

/// Receives signals as events. Signals that would kill the shim, and lose its knowledge of containers, have no
/// effect.
fn signals() -> io::Result<SignalFd> {
    let signals: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Makes the OOM killer prefer the shim to containerd, whose adjustment it has inherited.
fn give_way_to_containerd() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let inherited = fs::read_to_string(FILE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(inherited) = inherited {
        // Raising it is always allowed.
        let _ = fs::write(FILE, (inherited + 1).min(MAX_OOM_SCORE_ADJ).to_string());
    }
}
