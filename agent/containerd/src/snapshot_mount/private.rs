//! A snapshot that only one thread sees. It is mounted read-only in the thread's mount namespace, which ends with the
//! thread, so no mount remains.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::UnshareFlags;

use super::{Root, SnapshotMount};

/// The mount point in the thread's namespace: it exists on every system, and the thread does not need it.
const MOUNT_POINT: &str = "/proc";

/// Calls `read` with the root directory of a snapshot, on a thread called `name` that has no `/proc`. Blocks; needs
/// `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// The snapshot cannot be mounted, or `read` fails.
pub(crate) fn with_mounted<T: Send>(
    mounts: &[SnapshotMount],
    name: &str,
    read: impl FnOnce(OwnedFd) -> io::Result<T> + Send,
) -> io::Result<T> {
    let image = Root::from_mounts(mounts)?;
    // A new thread, because a reused thread must not stay in the namespace.
    std::thread::scope(|scope| {
        let work = || read_in_namespace(&image, read);
        let reader = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work)?;
        reader.join().map_err(|_| io::Error::other("the thread reading the image panicked"))?
    })
}

fn read_in_namespace<T>(image: &Root, read: impl FnOnce(OwnedFd) -> io::Result<T>) -> io::Result<T> {
    // SAFETY: only the mount namespace (and with it root and working directory) is unshared, not the table of file
    // descriptors, and this thread exits with this function.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)?;
    }
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // NODEV: opening a device can have side effects.
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    image
        .mount(Path::new(MOUNT_POINT), flags)
        .map_err(|error| io::Error::new(error.kind(), format!("mount the image's {image}: {error}")))?;
    let root = open(MOUNT_POINT, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let done = root.map_err(io::Error::from).and_then(read);
    // The namespace ends only after the thread was joined, and a device that is still mounted could not be mounted
    // otherwise.
    match unmount(MOUNT_POINT, UnmountFlags::empty()) {
        // A process that another thread has just forked has a copy of a descriptor until it executes its program.
        Err(rustix::io::Errno::BUSY) => unmount(MOUNT_POINT, UnmountFlags::DETACH)?,
        unmounted => unmounted?,
    }
    done
}
