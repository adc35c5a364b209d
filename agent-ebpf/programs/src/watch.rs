//! Who changes something in a watched directory.
//!
//! On the way out of the security hooks, whose arguments are the same on every kernel since 5.10: what another security
//! module refused is not told. A file system may still refuse (no space): the event names an actor, it is no proof.

use aya_ebpf::macros::{fentry, fexit};
use aya_ebpf::programs::{FEntryContext, FExitContext};
use limpet_events::Operation;

use crate::kernel::{self, Pointer};
use crate::files::{self, Report};
use crate::maps;

/// Tells of `dentry` in `directory` when that is watched and the hook let it pass.
#[inline(always)]
fn changed(operation: Operation, directory: Pointer, dentry: Pointer, answer: i32) -> i32 {
    if answer == 0
        && let Some(key) = kernel::inode_key(directory)
        && maps::is_watched(&key)
    {
        files::tell(Report::WRITE, operation, &key, dentry);
    }
    0
}

#[fexit]
fn watch_create(ctx: FExitContext) -> i32 {
    changed(Operation::Create, ctx.arg(0), ctx.arg(1), ctx.arg(3))
}

#[fexit]
fn watch_unlink(ctx: FExitContext) -> i32 {
    changed(Operation::Unlink, ctx.arg(0), ctx.arg(1), ctx.arg(2))
}

#[fexit]
fn watch_symlink(ctx: FExitContext) -> i32 {
    changed(Operation::Symlink, ctx.arg(0), ctx.arg(1), ctx.arg(3))
}

#[fexit]
fn watch_link(ctx: FExitContext) -> i32 {
    changed(Operation::Link, ctx.arg(1), ctx.arg(2), ctx.arg(3))
}

#[fexit]
fn watch_rename(ctx: FExitContext) -> i32 {
    let answer = ctx.arg(5);
    changed(Operation::MovedFrom, ctx.arg(0), ctx.arg(1), answer);
    changed(Operation::MovedTo, ctx.arg(2), ctx.arg(3), answer)
}

/// Every close of the machine comes by here, so what is asked first is cheapest.
#[fentry]
fn watch_close(ctx: FEntryContext) -> i32 {
    let file: Pointer = ctx.arg(0);
    if kernel::is_open_for_writing(file)
        && let Some(dentry) = kernel::file_dentry(file)
        && let Some(directory) = kernel::dentry_directory(dentry)
    {
        return changed(Operation::Written, directory, dentry, 0);
    }
    0
}
