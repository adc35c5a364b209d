//! The init of a pod's shared PID namespace (`shareProcessNamespace`): limpet's executable, started again.
//!
//! It is process 1 of the namespace: the kernel ends all others with it, and gives it the orphans, which it reaps. It is in the
//! pod's namespaces and has no capability, no file of the host's, and a root file system with nothing but its own program,
//! read-only: a container that may look into it finds nothing there. No signal from within the namespace reaches it.
//!
//! Two stages, because a process keeps the executable it has: [`ARGUMENT`] makes the root file system and executes the copy
//! of the program in it, as [`ISOLATED`], which gives up its rights.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::namespaces::unshare_namespaces;

/// The first argument that makes the executable an init; the second is the sandbox's directory.
pub(super) const ARGUMENT: &str = "pod-init";
/// The first argument of the second stage.
const ISOLATED: &str = "pod-init-isolated";
/// The program, in the init's root file system.
const PROGRAM: &str = "limpet";
/// kubelet's OOM score of a pause container.
const OOM_SCORE_ADJ: &str = "-998";

/// The stage, and the sandbox's directory, if this process was started as an init. Call it first in `main`.
pub fn invoked() -> Option<Stage> {
    let mut arguments = std::env::args_os().skip(1);
    let stage = match arguments.next()?.to_str()? {
        ARGUMENT => Stage::First,
        ISOLATED => Stage::Isolated,
        _ => return None,
    };
    let directory = arguments.next()?.into();
    arguments.next().is_none().then(|| stage(directory))
}

/// How far the init is.
#[derive(Debug)]
pub enum Stage {
    /// With the agent's rights and the host's files.
    First(PathBuf),
    /// Its program is the copy in its root file system.
    Isolated(PathBuf),
}

/// Runs the process as an init, until the namespace is to end.
pub fn main(stage: &Stage) -> ExitCode {
    let failed = match stage {
        Stage::First(directory) => isolate(directory),
        Stage::Isolated(directory) => serve(directory),
    };
    // The agent reads it; without a reader nobody is left to be told.
    let _ = io::stdout().write_all(failed.to_string().as_bytes());
    ExitCode::FAILURE
}

/// Waits for the agent's word, makes the root file system and executes the second stage; returns why it cannot.
fn isolate(directory: &Path) -> io::Error {
    let prepared = released().and_then(|()| {
        // An agent without CAP_SYS_RESOURCE cannot lower it.
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
        root_file_system(directory)
    });
    match prepared {
        Ok(()) => Command::new(directory.join(PROGRAM)).arg0("/limpet").arg(ISOLATED).arg(directory).env_clear().exec(),
        Err(error) => error,
    }
}

/// Until the agent has put this process into the pod's cgroup.
fn released() -> io::Result<()> {
    io::stdin().read_exact(&mut [0])
}

/// A tmpfs over `directory`, in a mount namespace of its own, with limpet's executable, read-only.
fn root_file_system(directory: &Path) -> io::Result<()> {
    // Taken before the mount namespace is left, in which alone it can be; an upgrade may have removed the file's name.
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let executable = rustix::mount::open_tree(CWD, "/proc/self/exe", copy)?;
    unshare_namespaces(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("limpet", directory, "tmpfs", flags, c"mode=0755,size=64k,nr_inodes=16")?;
    let program = directory.join(PROGRAM);
    std::fs::File::create_new(&program)?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&executable, "", CWD, &program, whole)?;
    rustix::mount::mount_remount(&program, MountFlags::BIND | MountFlags::RDONLY | flags, c"")?;
    Ok(rustix::process::chdir(directory)?)
}

/// Leaves the host's files, gives up all rights, says so to the agent, and reaps for ever; returns why it cannot.
fn serve(directory: &Path) -> io::Error {
    let isolated = leave_host(directory).and_then(|()| give_up_rights());
    let mask = SigSet::from(Signal::SIGCHLD);
    let blocked = isolated.and_then(|()| mask.thread_block().map_err(io::Error::from));
    let ready = blocked.and_then(|()| io::stdout().write_all(b"\n")).and_then(|()| io::stdout().flush());
    match ready.and_then(|()| close_streams()) {
        Ok(()) => reap(mask),
        Err(error) => error,
    }
}

fn leave_host(directory: &Path) -> io::Result<()> {
    rustix::process::chdir(directory)?;
    rustix::process::pivot_root(".", ".")?;
    // The host's root is now mounted on top of the new one.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount("/", flags, c"")?)
}

fn give_up_rights() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // Containers of its user may not trace it.
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Lets the agent's pipes go.
fn close_streams() -> io::Result<()> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&root)?;
    rustix::stdio::dup2_stdout(&root)?;
    Ok(rustix::stdio::dup2_stderr(&root)?)
}

fn reap(mask: SigSet) -> io::Error {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            // One that exits from here on leaves its signal pending.
            Ok(None) | Err(_) => match mask.wait() {
                Ok(_) => {}
                Err(errno) => return errno.into(),
            },
        }
    }
}
