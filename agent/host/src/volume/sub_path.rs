//! `subPath`: a part of a volume, bind-mounted to a path in the pod's directory, so that no process can replace it by a
//! symlink before the container is created.
//!
//! The path is opened by descriptors that the kernel confines to the volume (openat2, Linux 5.6), missing directories
//! are created with the volume's permissions, and the result is bound by its descriptor, as in kubelet.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{VolumeError, files};

/// A container's mount of a part of a volume: the names for errors and for the path of the bind mount.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubPath<'a> {
    pub container: &'a str,
    pub volume: &'a str,
    /// Empty: the whole volume.
    pub sub_path: &'a str,
    /// Position among the container's `volumeMounts`.
    pub index: usize,
}

/// Where the parts of that volume are bound.
pub(super) fn directory(pod_dir: &Path, volume: impl AsRef<Path>) -> PathBuf {
    pod_dir.join("volume-subpaths").join(volume)
}

impl SubPath<'_> {
    /// Binds the part of the volume at `volume_dir` to a path in the pod's directory and returns that path.
    pub(super) fn bind(&self, pod_dir: &Path, volume_dir: &Path) -> Result<PathBuf, VolumeError> {
        let part = self.open(volume_dir)?;
        let target = directory(pod_dir, self.volume).join(self.container).join(self.index.to_string());
        // The mount of the container's last run; its source may have been replaced since.
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
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let open = |path: &Path| rustix::fs::openat2(&base, path, flags, Mode::empty(), beneath);
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
            current = Some(match open(&reached) {
                Err(Errno::NOENT) => {
                    let parent = current.as_ref().unwrap_or(&base);
                    make_dir(parent, name, mode).map_err(VolumeError::io("make", volume_dir.join(&reached)))?;
                    open(&reached).map_err(|errno| fail(&reached, errno))?
                }
                other => other.map_err(|errno| fail(&reached, errno))?,
            });
        }
        Ok(current.unwrap_or(base))
    }

    fn escapes(&self) -> VolumeError {
        VolumeError::SubPathEscapes {
            container: self.container.to_owned(),
            volume: self.volume.to_owned(),
            sub_path: self.sub_path.to_owned(),
        }
    }
}

/// Creates a directory in `parent` with exactly that mode.
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
