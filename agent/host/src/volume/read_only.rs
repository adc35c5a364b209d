//! `recursiveReadOnly`: a bind mount with everything mounted below it, all of it read-only.
//!
//! The mounts are the agent's own, private copies: nothing mounted later on the host comes into them, and the container's
//! runtime copies them as they are. So it works on every kernel and with every OCI runtime.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};

use super::VolumeError;
use crate::mount_table::{self, Mount};

/// Flags of a mount that a remount would drop unless it names them.
const PRESERVED_FLAGS: [(&str, MountFlags); 4] = [
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("nosymfollow", MountFlags::from_bits_retain(256)),
];

/// Makes the mount at `target` and every mount below it private and read-only.
pub(super) fn recursively(target: &Path) -> Result<(), VolumeError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change(target, private)
        .map_err(|errno| VolumeError::io("make private", target)(errno.into()))?;
    let real = target.canonicalize().map_err(VolumeError::io("stat", target))?;
    let mounts = mount_table::mounts().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    for mount in mounts.iter().filter(|mount| mount.point.starts_with(&real)) {
        match rustix::mount::mount_remount(&mount.point, flags(mount), "") {
            // Covered by a mount above it: no path leads there.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(VolumeError::io("make read-only", &mount.point)(errno.into())),
        }
    }
    Ok(())
}

fn flags(mount: &Mount) -> MountFlags {
    let kept =
        PRESERVED_FLAGS.iter().filter(|(name, _)| mount.flags.iter().any(|flag| flag == name)).map(|(_, flag)| *flag);
    kept.fold(MountFlags::BIND | MountFlags::RDONLY, |flags, flag| flags | flag)
}
