//! `subPath`: a part of a volume, bind-mounted to a path in the pod's directory, so that no process can replace it by
//! a symlink before the container is created.
//!
//! The path is opened through descriptors that are confined to the volume, missing directories are created with the
//! volume's permissions, and the result is bound by its descriptor, as in kubelet. A symlink that leads out of the
//! volume and back, such as an absolute one, also works: it is resolved on the node, and its target is opened from
//! the volume without following further symlinks.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{VolumeError, files};
use crate::confined::{self, Confinement};

/// A container's mount of a part of a volume, with the names for errors and for the bind mount's path.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubPath<'a> {
    pub container: &'a str,
    pub volume: &'a str,
    /// Empty for the whole volume.
    pub sub_path: &'a str,
    /// The index in the container's `volumeMounts`.
    pub index: usize,
}

/// The directory in which parts of the volume are bound.
pub(super) fn directory(pod_dir: &Path, volume: impl AsRef<Path>) -> PathBuf {
    pod_dir.join("volume-subpaths").join(volume)
}

impl SubPath<'_> {
    /// Binds the part of the volume at `volume_dir` to a path in the pod's directory. Returns that path.
    pub(super) fn bind(&self, pod_dir: &Path, volume_dir: &Path) -> Result<PathBuf, VolumeError> {
        let part = self.open(volume_dir)?;
        let target = directory(pod_dir, self.volume).join(self.container).join(self.index.to_string());
        // The mount of the container's previous run, whose source may have been replaced since.
        match rustix::mount::unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(VolumeError::io("unmount", target)(errno.into())),
        }
        let stat = rustix::fs::fstat(&part).map_err(|errno| VolumeError::io("stat", volume_dir)(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            files::make_dirs(&target, 0o750)?;
        } else {
            files::make_dirs(target.parent().unwrap_or(pod_dir), 0o750)?;
            files::make_file(&target, 0o640)?;
        }
        let part = format!("/proc/self/fd/{}", part.as_raw_fd());
        rustix::mount::mount_bind_recursive(part, &target)
            .map_err(|errno| VolumeError::io("bind a subPath onto", &target)(errno.into()))?;
        Ok(target)
    }

    /// Opens the part, creating missing directories.
    fn open(&self, volume_dir: &Path) -> Result<OwnedFd, VolumeError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fail = |path: &Path, errno: Errno| match errno {
            Errno::XDEV => self.escapes(),
            errno => VolumeError::io("open", volume_dir.join(path))(errno.into()),
        };
        let directory = if self.sub_path.is_empty() { OFlags::empty() } else { OFlags::DIRECTORY };
        let base = rustix::fs::openat(CWD, volume_dir, flags | directory, Mode::empty())
            .map_err(|errno| fail(Path::new(""), errno))?;
        let mode = rustix::fs::fstat(&base).map_err(|errno| fail(Path::new(""), errno))?.st_mode & 0o7777;
        let open = |path: &Path| match confined::open(&base, path, flags, Confinement::BENEATH) {
            Err(Errno::XDEV) => Ok(self.open_resolved(&base, volume_dir, path)?),
            opened => opened.map(|opened| (opened, path.to_owned())).map_err(|errno| fail(path, errno)),
        };
        let mut reached = PathBuf::new();
        let mut current = None;
        for component in Path::new(self.sub_path).components() {
            let Component::Normal(name) = component else {
                match component {
                    Component::CurDir => continue,
                    _ => return Err(self.escapes()),
                }
            };
            reached.push(name);
            let is_missing = |error: &VolumeError| matches!(error, VolumeError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
            let opened = match open(&reached) {
                Err(error) if is_missing(&error) => {
                    let parent = current.as_ref().unwrap_or(&base);
                    make_dir(parent, name, mode).map_err(VolumeError::io("make", volume_dir.join(&reached)))?;
                    open(&reached)
                }
                opened => opened,
            };
            let (opened, path) = opened?;
            (current, reached) = (Some(opened), path);
        }
        Ok(current.unwrap_or(base))
    }

    /// Opens a path that leads out of the volume through a symlink and back, by its resolved path within the volume.
    fn open_resolved(&self, base: &OwnedFd, volume_dir: &Path, path: &Path) -> Result<(OwnedFd, PathBuf), VolumeError> {
        let resolve = |path: PathBuf| path.canonicalize().map_err(VolumeError::io("resolve", path));
        let (volume, whole) = (resolve(volume_dir.to_owned())?, resolve(volume_dir.join(path))?);
        let inside = whole.strip_prefix(volume).map_err(|_| self.escapes())?;
        let from_base = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        // A process that uses the volume may have added a symlink meanwhile.
        let confinement = Confinement::BENEATH.without_symlinks();
        match confined::open(base, from_base, OFlags::PATH | OFlags::CLOEXEC, confinement) {
            Err(Errno::XDEV | Errno::LOOP) => Err(self.escapes()),
            opened => Ok((opened.map_err(|errno| VolumeError::io("open", &whole)(errno.into()))?, inside.to_owned())),
        }
    }

    fn escapes(&self) -> VolumeError {
        VolumeError::SubPathEscapes {
            container: self.container.to_owned(),
            volume: self.volume.to_owned(),
            sub_path: self.sub_path.to_owned(),
        }
    }
}

/// Creates a directory in `parent` with exactly this mode.
fn make_dir(parent: &OwnedFd, name: &std::ffi::OsStr, mode: u32) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn open(volume: &Path, sub_path: &str) -> Result<u64, VolumeError> {
        let opened = SubPath { container: "c", volume: "v", sub_path, index: 0 }.open(volume)?;
        Ok(fs::File::from(opened).metadata().unwrap().ino())
    }

    fn inode(path: impl AsRef<Path>) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    /// A volume with versioned releases, below a directory that is also reached through a symlink.
    fn volume() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let volume = base.path().join("app");
        fs::create_dir_all(volume.join("releases/42/bin")).unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        symlink(volume.join("releases/42"), volume.join("current")).unwrap();
        symlink(&volume, base.path().join("alias")).unwrap();
        symlink("../app/releases", volume.join("around")).unwrap();
        symlink(base.path().join("alias/releases"), volume.join("by-alias")).unwrap();
        symlink(&volume, volume.join("itself")).unwrap();
        symlink(base.path().join("outside"), volume.join("out")).unwrap();
        symlink("../outside", volume.join("out-too")).unwrap();
        symlink(volume.join("none"), volume.join("dangling")).unwrap();
        (base, volume)
    }

    #[test]
    fn a_symlink_that_ends_in_the_volume_is_followed() {
        let (base, volume) = volume();
        for (sub_path, wanted) in [
            ("current", "releases/42"),
            ("current/bin", "releases/42/bin"),
            ("around/42", "releases/42"),
            ("by-alias/42/bin", "releases/42/bin"),
            ("itself", "."),
            ("itself/current/bin", "releases/42/bin"),
        ] {
            assert_eq!(open(&volume, sub_path).unwrap(), inode(volume.join(wanted)), "{sub_path}");
            assert_eq!(open(&base.path().join("alias"), sub_path).unwrap(), inode(volume.join(wanted)), "{sub_path}");
        }
        // A missing part is created where the symlink leads.
        assert_eq!(open(&volume, "current/log/today").unwrap(), inode(volume.join("releases/42/log/today")));
        for sub_path in ["out", "out-too", "out/deeper", "itself/out", "current/../../outside"] {
            let error = open(&volume, sub_path).unwrap_err();
            assert!(matches!(error, VolumeError::SubPathEscapes { .. }), "{sub_path}: {error}");
        }
        assert!(matches!(open(&volume, "dangling").unwrap_err(), VolumeError::Io { .. }));
        assert_eq!(fs::read_dir(base.path().join("outside")).unwrap().count(), 0);
    }

    #[test]
    fn a_symlink_that_a_process_of_the_volume_swaps_leads_nowhere_else() {
        let (base, volume) = volume();
        let outside = inode(base.path().join("outside"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for name in ["current", "releases/42"] {
                        let exchange = rustix::fs::RenameFlags::EXCHANGE;
                        rustix::fs::renameat_with(CWD, volume.join(name), CWD, volume.join("out"), exchange).unwrap();
                    }
                }
            });
            for _ in 0..2000 {
                for sub_path in ["current", "out", "releases/42"] {
                    assert!(open(&volume, sub_path).map_or(true, |opened| opened != outside));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
