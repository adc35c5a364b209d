//! The kernel's structures, read through the offsets that the loader has set.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::helpers::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_task, bpf_probe_read_kernel};
use limpet_events::UNKNOWN;

use crate::maps::InodeKey;

/// Declares offsets: globals that the loader overrides, and that the verifier then knows as constants.
macro_rules! offsets {
    ($($name:ident),+ $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            static $name: u32 = UNKNOWN;
        )+
    };
}

offsets!(
    DENTRY_NAME,
    DENTRY_PARENT,
    DENTRY_INODE,
    INODE_NUMBER,
    INODE_SUPER_BLOCK,
    SUPER_BLOCK_DEVICE,
    SUPER_BLOCK_ROOT,
    PATH_DENTRY,
    FILE_DENTRY,
    FILE_MODE,
    FILE_MOUNT,
    MOUNT_ROOT,
    MOUNT_ITSELF,
    MOUNT_PARENT,
    MOUNT_POINT,
    TASK_PARENT,
    TASK_TGID,
    TASK_PID,
    TASK_MM,
    SIGNAL_CODE,
    MM_EXE_FILE,
    TASK_CGROUPS,
    CSS_SET_CGROUP,
    CGROUP_LEVEL,
    CGROUP_ANCESTOR_IDS,
    SETATTR_DENTRY,
    SETXATTR_DENTRY,
    REMOVEXATTR_DENTRY,
    SET_ACL_DENTRY,
    REMOVE_ACL_DENTRY,
    EVENT_MASK,
    EVENT_DIRECTORY,
    EVENT_NAME,
    NAME_BYTES,
);

/// The file was opened for writing.
const FMODE_WRITE: u32 = 2;

/// A pointer into the kernel. Never followed but by the helper.
pub type Pointer = *const c_void;

/// A global as the loader has set it; read volatile, else the compiler folds the default in.
fn set(global: &'static u32) -> u32 {
    // SAFETY: a reference is valid for reads.
    unsafe { ptr::read_volatile(global) }
}

/// The value at `offset` of `base`.
#[inline(always)]
fn field<T>(base: Pointer, offset: &'static u32) -> Option<T> {
    let offset = set(offset);
    if offset == UNKNOWN || base.is_null() {
        return None;
    }
    // SAFETY: the helper checks the address itself.
    unsafe { bpf_probe_read_kernel(base.byte_add(offset as usize).cast::<T>()) }.ok()
}

#[inline(always)]
fn pointer(base: Pointer, offset: &'static u32) -> Option<Pointer> {
    field::<u64>(base, offset).map(|address| address as Pointer).filter(|pointer| !pointer.is_null())
}

/// Which inode it is.
#[inline(always)]
pub fn inode_key(inode: Pointer) -> Option<InodeKey> {
    let number: u64 = field(inode, &INODE_NUMBER)?;
    let device: u32 = field(pointer(inode, &INODE_SUPER_BLOCK)?, &SUPER_BLOCK_DEVICE)?;
    Some([number, device as u64])
}

/// Where the name of a dentry lies.
#[inline(always)]
pub fn dentry_name(dentry: Pointer) -> Option<Pointer> {
    pointer(dentry, &DENTRY_NAME)
}

/// The inode a dentry names, if it names one.
#[inline(always)]
pub fn dentry_inode(dentry: Pointer) -> Option<Pointer> {
    pointer(dentry, &DENTRY_INODE)
}

/// The directory a dentry is in.
#[inline(always)]
pub fn dentry_directory(dentry: Pointer) -> Option<Pointer> {
    dentry_inode(pointer(dentry, &DENTRY_PARENT)?)
}

/// Whether a dentry has no name: it is its own parent, and not the root of its file system.
#[inline(always)]
pub fn is_detached(dentry: Pointer) -> bool {
    pointer(dentry, &DENTRY_PARENT) == Some(dentry) && root_of_file_system(dentry).is_some_and(|root| root != dentry)
}

#[inline(always)]
fn root_of_file_system(dentry: Pointer) -> Option<Pointer> {
    pointer(pointer(dentry_inode(dentry)?, &INODE_SUPER_BLOCK)?, &SUPER_BLOCK_ROOT)
}

#[inline(always)]
pub fn path_dentry(path: Pointer) -> Option<Pointer> {
    pointer(path, &PATH_DENTRY)
}

#[inline(always)]
pub fn file_dentry(file: Pointer) -> Option<Pointer> {
    pointer(file, &FILE_DENTRY)
}

#[inline(always)]
pub fn is_open_for_writing(file: Pointer) -> bool {
    field::<u32>(file, &FILE_MODE).is_some_and(|mode| mode & FMODE_WRITE != 0)
}

/// The argument `mask` of `fsnotify()`, at whose entry these are the registers.
#[inline(always)]
pub fn event_mask(registers: Pointer) -> Option<u32> {
    field(registers, &EVENT_MASK)
}

/// Its argument `dir`.
#[inline(always)]
pub fn event_directory(registers: Pointer) -> Option<Pointer> {
    pointer(registers, &EVENT_DIRECTORY)
}

/// Where the name lies that its argument `file_name` is about.
#[inline(always)]
pub fn event_name(registers: Pointer) -> Option<Pointer> {
    pointer(pointer(registers, &EVENT_NAME)?, &NAME_BYTES)
}

#[inline(always)]
fn current() -> Pointer {
    // SAFETY: the helper has no conditions.
    unsafe { bpf_get_current_task() as Pointer }
}

/// The current process's parent; 0 when unknown.
#[inline(always)]
pub fn parent() -> u32 {
    if set(&TASK_PARENT) == UNKNOWN {
        return 0;
    }
    pointer(current(), &TASK_PARENT).and_then(|parent| field(parent, &TASK_TGID)).unwrap_or(0)
}

/// The id of a thread.
#[inline(always)]
pub fn thread_of(task: Pointer) -> Option<u32> {
    field(task, &TASK_PID)
}

/// The id of a thread's process.
#[inline(always)]
pub fn process_of(task: Pointer) -> Option<u32> {
    field(task, &TASK_TGID)
}

/// `si_code` of a `struct kernel_siginfo`.
#[inline(always)]
pub fn signal_code(info: Pointer) -> Option<i32> {
    field(info, &SIGNAL_CODE)
}

/// The executable of the current process; a kernel thread has none.
#[inline(always)]
pub fn executable() -> Option<InodeKey> {
    inode_key(dentry_inode(file_dentry(executable_file()?)?)?)
}

#[inline(always)]
fn executable_file() -> Option<Pointer> {
    pointer(pointer(current(), &TASK_MM)?, &MM_EXE_FILE)
}

/// A name in the tree of files: a dentry, and the `struct vfsmount` by which it is seen.
pub struct Place {
    dentry: Pointer,
    mount: Pointer,
}

/// What is above a place.
pub enum Above {
    /// The directory that has its name.
    Directory(Place),
    /// It is the root of a mount, which lies here.
    MountPoint(Place),
    /// It is the root of everything.
    Nothing,
}

impl Place {
    /// Where the executable of the current process is.
    #[inline(always)]
    pub fn of_executable() -> Option<Self> {
        let file = executable_file()?;
        Some(Self { dentry: file_dentry(file)?, mount: pointer(file, &FILE_MOUNT)? })
    }

    /// Where its name lies.
    #[inline(always)]
    pub fn name(&self) -> Option<Pointer> {
        dentry_name(self.dentry)
    }

    #[inline(always)]
    pub fn above(&self) -> Option<Above> {
        if pointer(self.mount, &MOUNT_ROOT)? != self.dentry {
            return Some(Above::Directory(Self { dentry: pointer(self.dentry, &DENTRY_PARENT)?, mount: self.mount }));
        }
        let inside = set(&MOUNT_ITSELF) as usize;
        if inside == UNKNOWN as usize {
            return None;
        }
        // SAFETY: addresses are only computed; the helper checks them.
        let whole: Pointer = unsafe { self.mount.byte_sub(inside) };
        let parent = pointer(whole, &MOUNT_PARENT)?;
        if parent == whole {
            return Some(Above::Nothing);
        }
        // SAFETY: as above.
        let mount = unsafe { parent.byte_add(inside) };
        Some(Above::MountPoint(Self { dentry: pointer(whole, &MOUNT_POINT)?, mount }))
    }
}

/// Whether the current process has memory of its own: a kernel thread has none.
#[inline(always)]
pub fn is_kernel_thread() -> bool {
    pointer(current(), &TASK_MM).is_none()
}

/// The id of the current process's cgroup, or of the one above it, that is `level` below the root; 0 when it is not as deep.
///
/// Kernels before 6.1 keep these ids in the cgroup, and do not all give the helper to programs like these.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn ancestor(level: i32) -> u64 {
    if set(&CGROUP_ANCESTOR_IDS) == UNKNOWN {
        // SAFETY: the helper answers 0 for a level that is not there.
        return unsafe { bpf_get_current_ancestor_cgroup_id(level) };
    }
    let cgroup = pointer(current(), &TASK_CGROUPS).and_then(|set| pointer(set, &CSS_SET_CGROUP));
    let Some(cgroup) = cgroup else { return 0 };
    match field::<i32>(cgroup, &CGROUP_LEVEL) {
        Some(deepest) if level <= deepest => {
            // SAFETY: the address is only computed; the helper checks it.
            let ids = unsafe { cgroup.byte_add(level as usize * size_of::<u64>()) };
            field::<u64>(ids, &CGROUP_ANCESTOR_IDS).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Which argument of `inode_setattr` is the dentry: it moved when the mount's id map came in front.
pub fn setattr_has_map() -> bool {
    set(&SETATTR_DENTRY) == 1
}

/// The same of `inode_setxattr`.
pub fn setxattr_has_map() -> bool {
    set(&SETXATTR_DENTRY) == 1
}

/// The same of `inode_removexattr`.
pub fn removexattr_has_map() -> bool {
    set(&REMOVEXATTR_DENTRY) == 1
}

/// The same of `inode_set_acl`.
pub fn set_acl_has_map() -> bool {
    set(&SET_ACL_DENTRY) == 1
}

/// The same of `inode_remove_acl`.
pub fn remove_acl_has_map() -> bool {
    set(&REMOVE_ACL_DENTRY) == 1
}
