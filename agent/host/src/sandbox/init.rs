//! The init of a pod's shared PID namespace (`shareProcessNamespace`): limpet's executable in another role.
//!
//! It is process 1 of the namespace: the kernel kills all others when it ends, and makes it the parent of orphans,
//! which it reaps. It is in the pod's namespaces and has no capability, no file of the host's, and a read-only root
//! file system that contains only its own program, so a container that looks into it finds nothing. No signal from
//! within the namespace reaches it.
//!
//! There are two stages, because a process keeps its executable open: [`ARGUMENT`] creates the root file system and
//! executes the copy of the program in it as [`ISOLATED_ARGUMENT`], which drops its privileges.
//!
//! With `hostUsers: false` the namespace has to be created by a process of the pod's user namespace, which may not
//! copy a mount of the host's. So the first stage creates the root file system, enters the user namespace, starts the
//! second stage as the first process of a PID namespace, [`USER_NAMESPACE_ARGUMENT`], and reports its PID. The second
//! stage has its own mount namespace, since the first stage's is the host's.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, WaitOptions};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_gid,
    set_thread_groups, set_thread_uid,
};

use super::USERS;
use super::unshare::unshare_namespaces;

/// The first argument that selects this role; the second is the sandbox's directory.
pub(super) const ARGUMENT: &str = "pod-init";
/// The first argument of the second stage.
const ISOLATED_ARGUMENT: &str = "pod-init-isolated";
/// The first argument of the second stage in a user namespace.
const USER_NAMESPACE_ARGUMENT: &str = "pod-init-of-own-users";
/// The program's name in the init's root file system.
const PROGRAM: &str = "limpet";
/// kubelet's OOM score of a pause container.
const OOM_SCORE_ADJ: &str = "-998";

/// The stage and the sandbox's directory, if this process was started as an init. Call it first in `main`.
pub fn invoked() -> Option<Stage> {
    let mut arguments = std::env::args_os().skip(1);
    let (stage, directory) = (arguments.next()?, arguments.next());
    let stage = match (stage.to_str()?, directory) {
        (ARGUMENT, Some(directory)) => Stage::First(directory.into()),
        (ISOLATED_ARGUMENT, Some(directory)) => Stage::Isolated(directory.into()),
        (USER_NAMESPACE_ARGUMENT, None) => Stage::OfOwnUsers,
        _ => return None,
    };
    arguments.next().is_none().then_some(stage)
}

#[derive(Debug)]
pub enum Stage {
    /// It has the agent's privileges and the host's files.
    First(PathBuf),
    /// Its program is the copy in its root file system.
    Isolated(PathBuf),
    /// The same in the pod's user namespace; its working directory will become its root.
    OfOwnUsers,
}

/// Runs the process as an init until the namespace ends, or as the process that starts one in a user namespace.
pub fn main(stage: &Stage) -> ExitCode {
    let ended = match stage {
        Stage::First(directory) if directory.join(USERS).exists() => start_among_own_users(directory),
        Stage::First(directory) => Err(isolate(directory)),
        Stage::Isolated(directory) => leave_host(directory).and_then(|()| serve()),
        Stage::OfOwnUsers => released().and_then(|()| take_root_file_system()).and_then(|()| serve()),
    };
    let Err(failed) = ended else { return ExitCode::SUCCESS };
    // The agent reads it; it may be gone.
    let _ = io::stdout().write_all(failed.to_string().as_bytes());
    ExitCode::FAILURE
}

/// Waits for its release, creates the root file system and executes the second stage. Returns the error if that
/// fails.
fn isolate(directory: &Path) -> io::Error {
    let prepared = released().and_then(|()| {
        protect_from_oom();
        root_file_system(directory, UnshareFlags::NEWCGROUP)
    });
    match prepared {
        Ok(()) => Command::new(directory.join(PROGRAM))
            .arg0("/limpet")
            .arg(ISOLATED_ARGUMENT)
            .arg(directory)
            .env_clear()
            .exec(),
        Err(error) => error,
    }
}

/// Starts the second stage as root and first process of a PID namespace in the pod's user namespace, and prints its
/// PID.
fn start_among_own_users(directory: &Path) -> io::Result<()> {
    let users = rustix::fs::open(directory.join(USERS), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    protect_from_oom();
    // Its cgroup namespace is created once it is in the pod's cgroup.
    root_file_system(directory, UnshareFlags::empty())?;
    move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
    set_thread_groups(&[])?;
    set_thread_gid(Gid::ROOT)?;
    set_thread_uid(Uid::ROOT)?;
    unshare_namespaces(UnshareFlags::NEWPID)?;
    // Relative to the working directory, because the pod's users may not access its parents.
    let init =
        Command::new(Path::new(".").join(PROGRAM)).arg0("/limpet").arg(USER_NAMESPACE_ARGUMENT).env_clear().spawn()?;
    writeln!(io::stdout(), "{}", init.id())
}

/// Fails harmlessly for an agent without CAP_SYS_RESOURCE.
fn protect_from_oom() {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
}

/// Makes the working directory the root of a mount namespace in the pod's user namespace.
fn take_root_file_system() -> io::Result<()> {
    unshare_namespaces(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // Mounts that came with the namespace are locked in place; a copy is not.
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, ".", copy)?;
    rustix::mount::move_mount(&tree, "", CWD, ".", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&tree)?;
    become_root()
}

/// Returns once the agent has moved this process into the pod's cgroup.
fn released() -> io::Result<()> {
    io::stdin().read_exact(&mut [0])
}

/// Mounts a read-only tmpfs with limpet's executable over `directory`, in a new mount namespace. `others` are created
/// with it.
fn root_file_system(directory: &Path, others: UnshareFlags) -> io::Result<()> {
    // Copied before the mount namespace is left, because it only works there; an upgrade may have removed the file's
    // name.
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let executable = rustix::mount::open_tree(CWD, "/proc/self/exe", copy)?;
    unshare_namespaces(UnshareFlags::NEWNS | others)?;
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

/// Drops all privileges, reports that to the agent, and reaps forever. Returns the error if that fails.
fn serve() -> io::Result<()> {
    give_up_rights()?;
    let mask = SigSet::from(Signal::SIGCHLD);
    mask.thread_block()?;
    io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush())?;
    close_streams()?;
    Err(reap(mask))
}

fn leave_host(directory: &Path) -> io::Result<()> {
    rustix::process::chdir(directory)?;
    become_root()
}

/// Makes the working directory, a mount, the root, and detaches the previous root.
fn become_root() -> io::Result<()> {
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
    // Containers with its user must not trace it.
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Closes the agent's pipes.
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
            // A child that exits from here on leaves its signal pending.
            Ok(None) | Err(_) => match mask.wait() {
                Ok(_) => {}
                Err(errno) => return errno.into(),
            },
        }
    }
}
