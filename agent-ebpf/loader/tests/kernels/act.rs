//! The writers of the tests: this executable again, as `act CGROUP OPERATION DIRECTORY`.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{DirEntryExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use nix::libc;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, removexattr, setxattr};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
    mount_bind, move_mount, unmount,
};

use crate::machine::CGROUPS;
use crate::to_text;

/// The first argument of a writer.
pub(crate) const COMMAND: &str = "act";
/// The attribute that holds a file's access control list.
const ACL: &str = "system.posix_acl_access";
/// A list of three entries: the owner reads and writes, the group and all others do nothing.
const OWNERS_ALONE: &[u8] = &[
    2, 0, 0, 0, // version
    1, 0, 6, 0, 255, 255, 255, 255, // owner
    4, 0, 0, 0, 255, 255, 255, 255, // group
    32, 0, 0, 0, 255, 255, 255, 255, // others
];
/// Files of every cgroup that can be written: one that is opened by its name, and one that never is.
const CGROUP_FILE: &str = "cgroup.max.depth";
const NAMELESS_FILE: &str = "cgroup.max.descendants";
/// Stay in the test's cgroup.
pub(crate) const OUTSIDE: &str = "-";

/// Starts a writer that exits by itself; the caller waits for it.
pub(crate) fn start(cgroup: &str, operation: &str, base: &Path) -> Result<Child, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, cgroup, operation]).arg(base).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(to_text)
}

/// Runs a writer, and returns the kernel's answer to it.
pub(crate) fn act(cgroup: &str, operation: &str, base: &Path) -> Result<Answer, String> {
    let status = start(cgroup, operation, base)?.wait().map_err(to_text)?;
    match status.code() {
        Some(0) => Ok(Answer::Done),
        Some(code) => Ok(Answer::Failed(io::Error::from_raw_os_error(code))),
        None => Err(format!("{operation}: the writer ended with {status}")),
    }
}

/// The result of an operation.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Failed(io::Error),
}

impl Answer {
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Failed(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()))
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

/// The writer's main function; its exit code is the errno.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [cgroup, operation, base] = arguments else { return ExitCode::from(255) };
    let done = enter(cgroup).and_then(|()| operate(operation, Path::new(base)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(error.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(254)),
    }
}

fn enter(cgroup: &str) -> io::Result<()> {
    if cgroup == OUTSIDE {
        return Ok(());
    }
    fs::write(Path::new(CGROUPS).join(cgroup).join("cgroup.procs"), "0")
}

/// The paths below a base: `above/manifests` guarded, `config` a guarded file, `outside` not guarded.
pub(crate) struct Paths {
    pub(crate) above: PathBuf,
    pub(crate) manifests: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) outside: PathBuf,
}

impl Paths {
    pub(crate) fn below(base: &Path) -> Self {
        let above = base.join("above");
        Self { manifests: above.join("manifests"), above, config: base.join("config"), outside: base.join("outside") }
    }

    /// Creates them again.
    pub(crate) fn create(&self) -> io::Result<()> {
        for dir in [&self.manifests, &self.outside] {
            fs::create_dir_all(dir)?;
        }
        fs::create_dir_all(self.manifests.join("sub"))?;
        for file in [self.manifests.join("web.yaml"), self.outside.join("other"), self.config.clone()] {
            fs::write(file, "kind: Pod\n")?;
        }
        setxattr(self.manifests.join("web.yaml"), "trusted.kept", b"x", XattrFlags::empty()).map_err(Into::into)
    }
}

fn operate(operation: &str, base: &Path) -> io::Result<()> {
    let at = Paths::below(base);
    let (web, new, other) = (at.manifests.join("web.yaml"), at.manifests.join("new"), at.outside.join("other"));
    match operation {
        "nothing" => Ok(()),
        "fail" => Err(io::Error::from_raw_os_error(3)),
        "wait" => loop {
            std::thread::park();
        },
        "ignore signals" => ignore_signals(),
        "grow" => grow(),
        // O_CREAT without write access: the hook of open for writing is not involved.
        "create" => rustix::fs::open(&new, rustix::fs::OFlags::CREATE, Mode::RUSR).map(drop).map_err(Into::into),
        "write" => fs::write(&new, "kind: Pod\n"),
        "open" => OpenOptions::new().append(true).open(&web).map(drop),
        "truncate" => nix::unistd::truncate(&web, 0).map_err(Into::into),
        "open truncating" => open_truncating(&web),
        "chmod" => fs::set_permissions(&web, fs::Permissions::from_mode(0o600)),
        "chmod of the directory" => fs::set_permissions(&at.manifests, fs::Permissions::from_mode(0o700)),
        "xattr" => setxattr(&web, "trusted.limpet", b"x", XattrFlags::empty()).map_err(Into::into),
        "xattr removal" => removexattr(&web, "trusted.kept").map_err(Into::into),
        "acl" => setxattr(&web, ACL, OWNERS_ALONE, XattrFlags::empty()).map_err(Into::into),
        "acl removal" => removexattr(&web, ACL).map_err(Into::into),
        "remove the guard" => fs::remove_dir_all(base),
        "unlink" => fs::remove_file(&web),
        "symlink" => symlink("/nowhere", &new),
        "link in" => fs::hard_link(&other, &new),
        "link out" => fs::hard_link(&web, at.outside.join("new")),
        "mkdir" => fs::create_dir(&new),
        "mkdir many times" => loop {
            fs::create_dir(&new).ok();
        },
        "rmdir" => fs::remove_dir(at.manifests.join("sub")),
        "mknod" => mknodat(CWD, &new, FileType::Fifo, Mode::RUSR, 0).map_err(Into::into),
        "rename in" => fs::rename(&other, &new),
        "rename out" => fs::rename(&web, at.outside.join("new")),
        "rename over" => fs::rename(&other, &web),
        "rename within" => fs::rename(&web, &new),
        "rename of the directory" => fs::rename(&at.manifests, at.outside.join("manifests")),
        "rename above" => fs::rename(&at.above, at.outside.join("above")),
        "mount over" => bind(&at.outside, &at.manifests),
        "mount over a file" => bind(&other, &web),
        "mount above" => bind(&at.outside, &at.above),
        "move mount" => move_mount_over(&at.manifests),
        "config: open" => OpenOptions::new().append(true).open(&at.config).map(drop),
        "config: unlink" => fs::remove_file(&at.config),
        "config: rename over" => fs::rename(&other, &at.config),
        "config: link" => fs::hard_link(&at.config, at.outside.join("new")),
        "config: chmod" => fs::set_permissions(&at.config, fs::Permissions::from_mode(0o600)),
        "open by name" => OpenOptions::new().write(true).open(base.join(CGROUP_FILE)).map(drop),
        "open by handle" => open_by_handle(base),
        _ => Err(io::Error::from_raw_os_error(253)),
    }
}

/// Truncates without write access: the hook of open for writing is not involved.
fn open_truncating(path: &Path) -> io::Result<()> {
    let flags = rustix::fs::OFlags::TRUNC | rustix::fs::OFlags::RDONLY;
    rustix::fs::open(path, flags, Mode::empty()).map(drop).map_err(Into::into)
}

/// `struct file_handle` of a cgroup's file (open_by_handle_at(2)).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: u64,
}

/// Opens a cgroup's file for writing by its id, which the directory has: no name is looked up.
fn open_by_handle(base: &Path) -> io::Result<()> {
    const FILEID_KERNFS: i32 = 0xfe;
    let mut entries = fs::read_dir(base)?.flatten();
    let id = entries.find(|entry| entry.file_name() == NAMELESS_FILE).ok_or(io::ErrorKind::NotFound)?.ino();
    let root = fs::File::open(CGROUPS)?;
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id };
    // SAFETY: `handle` is a file_handle whose `handle_bytes` is the size of what follows its head, and outlives the call; a
    // descriptor that is returned has no other owner.
    #[allow(unsafe_code)]
    let file = unsafe {
        let fd = libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    drop(file);
    Ok(())
}

/// Mounts and, when that was allowed, unmounts.
fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount_bind(source, target)?;
    unmount(target, UnmountFlags::DETACH).map_err(Into::into)
}

fn move_mount_over(target: &Path) -> io::Result<()> {
    let context = fsopen("tmpfs", FsOpenFlags::empty())?;
    fsconfig_create(&context)?;
    let tree = fsmount(&context, FsMountFlags::empty(), MountAttrFlags::empty())?;
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    unmount(target, UnmountFlags::DETACH).map_err(Into::into)
}

/// Blocks SIGTERM, and waits for the signal that cannot be blocked.
fn ignore_signals() -> io::Result<()> {
    nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGTERM).thread_block()?;
    loop {
        std::thread::park();
    }
}

/// Allocates memory until the OOM killer ends the process.
fn grow() -> io::Result<()> {
    let mut allocated = Vec::new();
    loop {
        allocated.push(vec![1u8; 1 << 20]);
    }
}
