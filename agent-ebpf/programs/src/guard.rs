//! The guard: who may not change the directories that decide what runs here.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use limpet_events::{Operation, UNKNOWN, guarded, mode};

use crate::kernel::{self, Pointer};
use crate::maps::{self, InodeKey};
use crate::actor;
use crate::files::{self, Attempts};

/// The mode, set by the loader; a mode that is not known refuses nothing.
#[unsafe(no_mangle)]
static GUARD_MODE: u32 = UNKNOWN;

const ALLOWED: i32 = 0;
const REFUSED: i32 = -1; // EPERM

/// What the current process may do to what is guarded.
enum Verdict {
    Allow,
    Tell,
    Refuse,
}

/// The answer to whoever runs now; `pods_alone`: what is refused to pods and to nobody else, in strict mode too.
#[inline(never)]
#[unsafe(no_mangle)]
fn verdict(pods_alone: bool) -> Verdict {
    // SAFETY: a reference is valid for reads; volatile, because the loader sets it.
    let mode = unsafe { core::ptr::read_volatile(&GUARD_MODE) };
    if maps::is_on_trial(actor::thread()) {
        return Verdict::Refuse;
    }
    match mode {
        mode::AUDIT if is_in_pod() => Verdict::Tell,
        mode::CONTAINERS if is_in_pod() => Verdict::Refuse,
        mode::STRICT if pods_alone && is_in_pod() || !pods_alone && !is_allowed() => Verdict::Refuse,
        _ => Verdict::Allow,
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn is_in_pod() -> bool {
    actor::is_below(maps::is_pod_cgroup)
}

/// Listed, and in no pod; the kernel's own threads have nothing they could be known by.
#[inline(always)]
fn is_allowed() -> bool {
    if kernel::is_kernel_thread() {
        return true;
    }
    if is_in_pod() {
        return false;
    }
    let listed = kernel::executable().is_some_and(|key| maps::is_allowed_executable(&key));
    listed || actor::is_below(maps::is_allowed_cgroup)
}

/// The answer to `operation` on `dentry` in `directory`; `what` says which guards of the inode itself count.
#[inline(never)]
#[unsafe(no_mangle)]
fn decide(operation: Operation, directory: Pointer, dentry: Pointer, what: u32) -> i32 {
    let Some(key) = kernel::inode_key(directory) else { return ALLOWED };
    let (around, itself) = (maps::guarded(&key), guarded_itself(dentry));
    answer_guards(operation, &key, dentry, around & either(guarded::CHILDREN) | itself & either(what))
}

/// The flags for all, and the same for pods alone.
#[inline(always)]
fn either(what: u32) -> u32 {
    what | what << guarded::FROM_PODS
}

/// The answer where `guards` count.
#[inline(always)]
fn answer_guards(operation: Operation, key: &InodeKey, dentry: Pointer, guards: u32) -> i32 {
    if guards == 0 {
        return ALLOWED;
    }
    let for_all = guards & (1 << guarded::FROM_PODS) - 1;
    answer(operation, key, dentry, for_all == 0)
}

/// A file without a name, and so without a directory, that could say whether it is guarded: `open_by_handle_at` gives one.
/// Pods are refused every such file of a file system with guarded ones.
#[inline(never)]
#[unsafe(no_mangle)]
fn decide_detached(operation: Operation, dentry: Pointer, what: u32) -> i32 {
    let Some([_, device]) = kernel::dentry_inode(dentry).and_then(kernel::inode_key) else { return ALLOWED };
    let key = [guarded::ANY_INODE, device];
    let guards = maps::guarded(&key) & either(guarded::DETACHED) | guarded_itself(dentry) & either(what);
    answer_guards(operation, &key, dentry, guards)
}

#[inline(always)]
fn guarded_itself(dentry: Pointer) -> u32 {
    let key = kernel::dentry_inode(dentry).and_then(kernel::inode_key);
    key.map_or(0, |key| maps::guarded(&key))
}

#[inline(always)]
fn answer(operation: Operation, key: &InodeKey, dentry: Pointer, pods_alone: bool) -> i32 {
    match verdict(pods_alone) {
        Verdict::Allow => ALLOWED,
        Verdict::Tell => {
            report(operation, key, dentry, false);
            ALLOWED
        }
        Verdict::Refuse => {
            report(operation, key, dentry, true);
            REFUSED
        }
    }
}

#[inline(always)]
fn report(operation: Operation, key: &InodeKey, dentry: Pointer, refused: bool) {
    let kind = [actor::cgroup(), operation as u64, key[0], key[1]];
    if let Some(number) = maps::attempts(&kind) {
        files::tell(Attempts::new(number, refused), operation, key, dentry);
    }
}

/// The same for a dentry alone: its directory is what it hangs below.
#[inline(always)]
fn decide_dentry(operation: Operation, dentry: Pointer, what: u32) -> i32 {
    if kernel::is_detached(dentry) {
        return decide_detached(operation, dentry, what);
    }
    match kernel::dentry_directory(dentry) {
        Some(directory) => decide(operation, directory, dentry, what),
        None => ALLOWED,
    }
}

/// Removing or renaming counts for the inode and for its place.
const GOES: u32 = guarded::ITSELF | guarded::PLACE;

#[lsm]
fn guard_create(ctx: LsmContext) -> i32 {
    decide(Operation::Create, ctx.arg(0), ctx.arg(1), 0)
}

#[lsm]
fn guard_symlink(ctx: LsmContext) -> i32 {
    decide(Operation::Symlink, ctx.arg(0), ctx.arg(1), 0)
}

#[lsm]
fn guard_mkdir(ctx: LsmContext) -> i32 {
    decide(Operation::MakeDirectory, ctx.arg(0), ctx.arg(1), 0)
}

#[lsm]
fn guard_mknod(ctx: LsmContext) -> i32 {
    decide(Operation::MakeNode, ctx.arg(0), ctx.arg(1), 0)
}

#[lsm]
fn guard_unlink(ctx: LsmContext) -> i32 {
    decide(Operation::Unlink, ctx.arg(0), ctx.arg(1), GOES)
}

#[lsm]
fn guard_rmdir(ctx: LsmContext) -> i32 {
    decide(Operation::RemoveDirectory, ctx.arg(0), ctx.arg(1), GOES)
}

/// A link into a guarded directory, and one out of it: the file could be written by its other name.
#[lsm]
fn guard_link(ctx: LsmContext) -> i32 {
    match decide(Operation::Link, ctx.arg(1), ctx.arg(2), 0) {
        ALLOWED => decide_dentry(Operation::Link, ctx.arg(0), guarded::ITSELF),
        refused => refused,
    }
}

#[lsm]
fn guard_rename(ctx: LsmContext) -> i32 {
    match decide(Operation::MovedFrom, ctx.arg(0), ctx.arg(1), GOES) {
        ALLOWED => decide(Operation::MovedTo, ctx.arg(2), ctx.arg(3), GOES),
        refused => refused,
    }
}

#[lsm]
fn guard_open(ctx: LsmContext) -> i32 {
    let file: Pointer = ctx.arg(0);
    if !kernel::is_open_for_writing(file) {
        return ALLOWED;
    }
    match kernel::file_dentry(file) {
        Some(dentry) => decide_dentry(Operation::Open, dentry, guarded::ITSELF),
        None => ALLOWED,
    }
}

#[lsm]
fn guard_truncate(ctx: LsmContext) -> i32 {
    match kernel::path_dentry(ctx.arg(0)) {
        Some(dentry) => decide_dentry(Operation::Truncate, dentry, guarded::ITSELF),
        None => ALLOWED,
    }
}

#[lsm]
fn guard_attributes(ctx: LsmContext) -> i32 {
    let dentry = first_or_second(&ctx, kernel::setattr_has_map());
    decide_dentry(Operation::Attributes, dentry, guarded::ITSELF)
}

#[lsm]
fn guard_xattr(ctx: LsmContext) -> i32 {
    let dentry = first_or_second(&ctx, kernel::setxattr_has_map());
    decide_dentry(Operation::ExtendedAttributes, dentry, guarded::ITSELF)
}

#[lsm]
fn guard_xattr_removal(ctx: LsmContext) -> i32 {
    let dentry = first_or_second(&ctx, kernel::removexattr_has_map());
    decide_dentry(Operation::ExtendedAttributes, dentry, guarded::ITSELF)
}

/// Access control lists, which are attributes on kernels before 6.2.
#[lsm]
fn guard_acl(ctx: LsmContext) -> i32 {
    let dentry = first_or_second(&ctx, kernel::set_acl_has_map());
    decide_dentry(Operation::Attributes, dentry, guarded::ITSELF)
}

#[lsm]
fn guard_acl_removal(ctx: LsmContext) -> i32 {
    let dentry = first_or_second(&ctx, kernel::remove_acl_has_map());
    decide_dentry(Operation::Attributes, dentry, guarded::ITSELF)
}

/// Both are read, and kept apart: an address computed from the choice is one the verifier refuses.
#[inline(always)]
fn first_or_second(ctx: &LsmContext, second: bool) -> Pointer {
    let arguments = core::hint::black_box((ctx.arg::<Pointer>(0), ctx.arg::<Pointer>(1)));
    if second { arguments.1 } else { arguments.0 }
}

#[lsm]
fn guard_mount(ctx: LsmContext) -> i32 {
    mount_over(ctx.arg(1))
}

#[lsm]
fn guard_move_mount(ctx: LsmContext) -> i32 {
    mount_over(ctx.arg(1))
}

#[inline(always)]
fn mount_over(path: Pointer) -> i32 {
    match kernel::path_dentry(path) {
        Some(dentry) => decide_dentry(Operation::Mount, dentry, GOES),
        None => ALLOWED,
    }
}
