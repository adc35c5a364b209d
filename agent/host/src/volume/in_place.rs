//! Rewrites files that containers have mounted: in the same inode, because a replaced file does not reach existing
//! mounts, and so that a full disk keeps the old content.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{VolumeError, files};

/// The most bytes of a file that are read: a longer one was not written by the agent, and is truncated instead of
/// padded.
const MAX_PADDED: u64 = 1 << 20;

/// Sets the file's content to `text`. With `keep_appended`, a file that continues after `text` is not changed,
/// because a container has appended its own lines.
///
/// # Errors
///
/// The file cannot be written; it keeps its old content, and a new file is not created.
pub(super) fn write(path: &Path, text: &str, keep_appended: bool) -> Result<(), VolumeError> {
    match files::read(path)? {
        Some(current) if current == text || (keep_appended && current.starts_with(text)) => Ok(()),
        Some(_) => overwrite(path, text.as_bytes()).map_err(VolumeError::io("write", path)),
        None => create(path, text),
    }
}

/// Writes a temporary file and renames it, because nothing has mounted the new file yet.
fn create(path: &Path, text: &str) -> Result<(), VolumeError> {
    let next = path.with_extension("next");
    let written = files::make_file(&next, 0o644).and_then(|()| {
        let open = OpenOptions::new().write(true).truncate(true).custom_flags(files::nofollow()).open(&next);
        let write = open.and_then(|file| file.write_all_at(text.as_bytes(), 0));
        write.map_err(VolumeError::io("write", path))?;
        std::fs::rename(&next, path).map_err(VolumeError::io("make file", path))
    });
    if written.is_err() {
        // The rest would take up space that may be short.
        let _ = std::fs::remove_file(&next);
    }
    written
}

fn overwrite(path: &Path, text: &[u8]) -> io::Result<()> {
    // The agent does not create symlinks here.
    let file = OpenOptions::new().read(true).write(true).custom_flags(files::nofollow()).open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_PADDED {
        file.set_len(text.len() as u64)?;
        return file.write_all_at(text, 0);
    }
    let mut old = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut old, 0)?;
    // Padded with blank lines until the file is truncated: a concurrent reader sees neither a rest of the old text
    // nor an empty file.
    let mut padded = text.to_vec();
    padded.resize(old.len().max(text.len()), b'\n');
    reserve(&file, padded.len() as u64)?;
    let written = file.write_all_at(&padded, 0).and_then(|()| file.set_len(text.len() as u64));
    if written.is_err() {
        // A copy-on-write file system may need more than the reserved space.
        let _ = file.write_all_at(&old, 0).and_then(|()| file.set_len(length));
    }
    written
}

/// Reserves space for the file's first bytes while it still has the old content.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, length) {
        // Not every file system supports this.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use limpet_tests::need;
    use rustix::mount::{MountFlags, UnmountFlags};

    use super::*;

    #[test]
    fn the_inode_stays_and_the_content_is_exact() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("etc-hosts");
        let read = || std::fs::read_to_string(&file).unwrap();
        write(&file, "one line\n", false).unwrap();
        let inode = std::fs::metadata(&file).unwrap().ino();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);
        let long = "x\n".repeat(100 << 10);
        for text in ["a much longer line\n", "short\n", "", &long, "after a long one\n", "\n", "same length?\n"] {
            write(&file, text, false).unwrap();
            assert_eq!(read(), text);
        }
        std::fs::write(&file, vec![b'x'; 2 << 20]).unwrap();
        write(&file, "after a container has filled it\n", false).unwrap();
        assert_eq!(read(), "after a container has filled it\n");
        std::fs::write(&file, "mine\nand more\n").unwrap();
        write(&file, "mine\n", true).unwrap();
        assert_eq!(read(), "mine\nand more\n");
        write(&file, "mine\n", false).unwrap();
        assert_eq!((read().as_str(), std::fs::metadata(&file).unwrap().ino()), ("mine\n", inode));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_full_disk_leaves_the_old_content() {
        if need::root("a small file system").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("t", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=64k")).unwrap();
        let file = dir.path().join("etc-resolv.conf");
        write(&file, "nameserver 10.0.0.1\n", false).unwrap();
        let full = std::fs::write(dir.path().join("other"), vec![1; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let long = format!("nameserver 10.0.0.2\noptions {}\n", "debug ".repeat(2000));
        let error = write(&file, &long, false).unwrap_err().to_string();
        assert!(error.contains("etc-resolv.conf") && error.contains("No space left"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nameserver 10.0.0.1\n");
        // Content that is not longer than the old one needs no space.
        write(&file, "nameserver 10.0.0.3\n", false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nameserver 10.0.0.3\n");
        // A new file exists completely or not at all: an empty one would hide that it was never written.
        let new = dir.path().join("etc-hosts");
        write(&new, &long, false).unwrap_err();
        assert!(!new.exists() && !dir.path().join("etc-hosts.next").exists());
        std::fs::remove_file(dir.path().join("other")).unwrap();
        write(&file, &long, false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), long);
        rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    }
}
