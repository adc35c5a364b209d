//! The programs of the object: what each is attached to, and which kernel offsets it needs.

use crate::Purpose;

/// How a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// A tracepoint, raw: without tracefs.
    Tracepoint(&'static str),
    /// The entry of a kernel function (kprobe).
    Probe(&'static str),
    /// An LSM hook.
    Lsm(&'static str),
}

impl Attachment {
    /// The kernel's name of the hook.
    pub(crate) fn hook(self) -> &'static str {
        match self {
            Self::Tracepoint(name) | Self::Probe(name) | Self::Lsm(name) => name,
        }
    }
}

/// A program of the object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) purpose: Purpose,
    pub(crate) attachment: Attachment,
    /// The globals that it requires.
    pub(crate) needs: &'static [&'static [&'static str]],
    /// The global that only kernels with its hook have; on the others another hook sees the same changes.
    pub(crate) only_with: Option<&'static str>,
}

/// To identify a directory.
const DIRECTORY: &[&str] = &["INODE_NUMBER", "INODE_SUPER_BLOCK", "SUPER_BLOCK_DEVICE"];
/// To identify a directory and a name in it.
const NAME: &[&str] =
    &["INODE_NUMBER", "INODE_SUPER_BLOCK", "SUPER_BLOCK_DEVICE", "DENTRY_NAME", "DENTRY_PARENT", "DENTRY_INODE"];
/// To recognise a file without a name.
const ROOT: &[&str] = &["SUPER_BLOCK_ROOT"];
/// To identify the cgroup of the current process.
const CGROUP: &[&str] = &["TASK_CGROUPS", "CSS_SET_CGROUP", "CGROUP_LEVEL"];
/// To identify an open file.
const FILE: &[&str] = &["FILE_DENTRY", "FILE_MODE"];
const PATH: &[&str] = &["PATH_DENTRY"];

const fn lifecycle(name: &'static str, event: &'static str, needs: &'static [&'static [&'static str]]) -> Program {
    Program { name, purpose: Purpose::Lifecycle, attachment: Attachment::Tracepoint(event), needs, only_with: None }
}

const fn guard(name: &'static str, hook: &'static str, needs: &'static [&'static [&'static str]]) -> Program {
    Program { name, purpose: Purpose::Guard, attachment: Attachment::Lsm(hook), needs, only_with: None }
}

/// A hook that came later.
const fn guard_since(name: &'static str, hook: &'static str, global: &'static str) -> Program {
    Program { only_with: Some(global), ..guard(name, hook, &[NAME, CGROUP, ROOT]) }
}

/// All programs, in the order they are attached.
pub(crate) const PROGRAMS: [Program; 21] = [
    lifecycle("oom_victim", "mark_victim", &[&["TASK_PID"]]),
    lifecycle("process_exit", "sched_process_exit", &[]),
    lifecycle("signal_sent", "signal_generate", &[&["TASK_TGID", "SIGNAL_CODE"]]),
    Program {
        name: "watch_change",
        purpose: Purpose::Watch,
        attachment: Attachment::Probe("fsnotify"),
        needs: &[DIRECTORY, &["EVENT_MASK", "EVENT_DIRECTORY", "EVENT_NAME", "NAME_BYTES"]],
        only_with: None,
    },
    guard("guard_create", "inode_create", &[NAME, CGROUP]),
    guard("guard_symlink", "inode_symlink", &[NAME, CGROUP]),
    guard("guard_mkdir", "inode_mkdir", &[NAME, CGROUP]),
    guard("guard_mknod", "inode_mknod", &[NAME, CGROUP]),
    guard("guard_unlink", "inode_unlink", &[NAME, CGROUP]),
    guard("guard_rmdir", "inode_rmdir", &[NAME, CGROUP]),
    guard("guard_link", "inode_link", &[NAME, CGROUP, ROOT]),
    guard("guard_rename", "inode_rename", &[NAME, CGROUP]),
    guard("guard_open", "file_open", &[NAME, CGROUP, ROOT, FILE]),
    guard("guard_truncate", "path_truncate", &[NAME, CGROUP, ROOT, PATH]),
    guard("guard_attributes", "inode_setattr", &[NAME, CGROUP, ROOT, &["SETATTR_DENTRY"]]),
    guard("guard_xattr", "inode_setxattr", &[NAME, CGROUP, ROOT, &["SETXATTR_DENTRY"]]),
    guard("guard_xattr_removal", "inode_removexattr", &[NAME, CGROUP, ROOT, &["REMOVEXATTR_DENTRY"]]),
    guard_since("guard_acl", "inode_set_acl", "SET_ACL_DENTRY"),
    guard_since("guard_acl_removal", "inode_remove_acl", "REMOVE_ACL_DENTRY"),
    guard("guard_mount", "sb_mount", &[NAME, CGROUP, ROOT, PATH]),
    guard("guard_move_mount", "move_mount", &[NAME, CGROUP, ROOT, PATH]),
];
