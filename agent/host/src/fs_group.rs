//! `fsGroup` of volumes that outlive a pod: gives their files to the group, with kubelet's permissions.
//!
//! The files are untrusted: see [`crate::tree`].

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat};

use crate::tree::{self, MAX_DEPTH};

/// The deadline for giving the files of a volume to a group.
pub const DEADLINE: Duration = Duration::from_secs(600);
/// Permissions added to files: the group may read and write.
const FILE_MODE: u32 = 0o660;
/// Permissions added to directories: the group may also search them, and new files belong to the group.
const DIRECTORY_MODE: u32 = 0o2770;

/// Gives the directory `path` and everything below it to `group`. With `on_root_mismatch` (`fsGroupChangePolicy:
/// OnRootMismatch`), does nothing if `path` itself already has the group. Blocks.
///
/// # Errors
///
/// A file cannot be changed, or the tree is deeper than 128 directories.
pub fn set(path: &Path, group: u32, on_root_mismatch: bool) -> io::Result<()> {
    let (top, stat) = tree::file(path)?;
    if on_root_mismatch && stat.st_gid == group && stat.st_mode & DIRECTORY_MODE == DIRECTORY_MODE {
        return Ok(());
    }
    if !tree::visit_below(&top, &mut |file, stat| set_group(file, stat, group))? {
        return Err(io::Error::other(format!("the volume has more than {MAX_DEPTH} directories in one another")));
    }
    // Changed last, so that an interrupted walk is not taken for a complete one.
    set_group(&top, &stat, group)
}

/// Changes one file: the group first, because changing it clears the set-group-id bit.
fn set_group(file: &impl AsFd, stat: &Stat, group: u32) -> io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if stat.st_gid != group {
        rustix::fs::chownat(file, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    let added = match kind {
        FileType::Directory => DIRECTORY_MODE,
        FileType::Symlink => return Ok(()),
        _ => FILE_MODE,
    };
    let mode = stat.st_mode & 0o7777 | added;
    if mode != stat.st_mode & 0o7777 || stat.st_gid != group {
        // fchmod does not work on an `O_PATH` descriptor.
        let itself = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        rustix::fs::chmod(itself, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

    use limpet_tests::need;

    use super::*;

    #[test]
    fn files_are_the_groups_and_symlinks_are_not_followed() {
        if need::root("owners of files").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        for file in [&outside, &volume.join("a/b/file")] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        symlink(&outside, volume.join("a/link")).unwrap();
        let attributes = |path: &Path| {
            let metadata = path.metadata().unwrap();
            (metadata.gid(), metadata.mode() & 0o7777)
        };
        let before = attributes(&outside);
        set(&volume, 2000, false).unwrap();
        assert_eq!(attributes(&volume.join("a/b/file")), (2000, 0o660));
        assert_eq!(attributes(&volume.join("a/b")), (2000, 0o2775));
        assert_eq!(attributes(&volume), (2000, 0o2775));
        assert_eq!(attributes(&outside), before);
        // If the volume itself has the group, its files are not checked.
        std::fs::write(volume.join("late"), "").unwrap();
        std::os::unix::fs::chown(volume.join("late"), None, Some(0)).unwrap();
        set(&volume, 2000, true).unwrap();
        assert_eq!(attributes(&volume.join("late")).0, 0);
        set(&volume, 2000, false).unwrap();
        assert_eq!(attributes(&volume.join("late")).0, 2000);
    }
}
