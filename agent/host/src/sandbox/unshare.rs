//! The system call that makes namespaces, for the agent's threads and for the processes that it starts for a sandbox.

use rustix::thread::UnshareFlags;

/// Moves the calling thread into new namespaces; ignores other flags.
#[allow(unsafe_code)]
pub(super) fn unshare_namespaces(flags: UnshareFlags) -> rustix::io::Result<()> {
    let flags = flags.difference(UnshareFlags::FILES);
    // SAFETY: the function is unsafe because of `UnshareFlags::FILES`, which is not among the flags; the file descriptor
    // table, on which every safe type relies, stays shared.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
