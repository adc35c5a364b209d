//! Copies a directory of an image with owners, modes, times and extended attributes. Names are looked up one at a
//! time without following links, so an untrusted image leads nowhere else.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use limpet_host::blocking::Progress;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// The deepest nesting of directories: each level holds descriptors and a stack frame.
const MAX_DEPTH: usize = 256;
/// Progress is reported each time this many bytes were copied.
const PROGRESS_STEP: u64 = 4 << 20;
/// The kernel's limit for the names of a file's attributes, and for a value.
const MAX_ATTRIBUTE: usize = 64 << 10;

/// Copies the content of the directory `from`, and its own owner and mode, to the directory `to`.
pub(super) fn tree(from: OwnedFd, to: &Path, progress: &Progress) -> io::Result<()> {
    let target = rustix::fs::openat(CWD, to, DIRECTORY, Mode::empty())?;
    Copy { to, progress }.directory(from, &target, MAX_DEPTH)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Copy<'a> {
    to: &'a Path,
    progress: &'a Progress,
}

impl Copy<'_> {
    fn directory(&self, from: OwnedFd, to: &OwnedFd, depth: usize) -> io::Result<()> {
        if depth == 0 {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut entries = Dir::read_from(&from)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.progress.at(self.to);
            self.entry(&from, to, name, depth)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy())))?;
        }
        finish(&from, to)
    }

    fn entry(&self, from: &OwnedFd, to: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let source = rustix::fs::openat(from, name, DIRECTORY, Mode::empty())?;
                rustix::fs::mkdirat(to, name, Mode::RWXU)?;
                let target = rustix::fs::openat(to, name, DIRECTORY, Mode::empty())?;
                self.directory(source, &target, depth - 1)
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let target = File::from(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
                self.content(&source, &target)?;
                finish(&source, &target)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                set_owner(to, name, &stat)
            }
            kind @ (FileType::Fifo | FileType::Socket) => {
                rustix::fs::mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode & 0o7777), 0)?;
                set_owner(to, name, &stat)
            }
            // Devices are skipped; the container's cgroup would refuse them.
            _ => Ok(()),
        }
    }

    fn content(&self, from: &File, mut to: &File) -> io::Result<()> {
        while io::copy(&mut from.take(PROGRESS_STEP), &mut to)? > 0 {
            self.progress.at(self.to);
        }
        Ok(())
    }
}

fn set_owner(to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    Ok(rustix::fs::chownat(to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets the owner first, because changing it clears the set-user-ID bit and file capabilities; times last.
#[allow(clippy::useless_conversion)] // the types of a Stat differ between architectures
fn finish(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(&from)?;
    rustix::fs::fchown(&to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    attributes(&from, &to)?;
    let time = |seconds: i64, nanoseconds: u32| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let nanoseconds = |value: u64| u32::try_from(value).unwrap_or_default();
    let times = Timestamps {
        last_access: time(stat.st_atime.into(), nanoseconds(stat.st_atime_nsec.into())),
        last_modification: time(stat.st_mtime.into(), nanoseconds(stat.st_mtime_nsec.into())),
    };
    Ok(rustix::fs::futimens(&to, &times)?)
}

/// Copies extended attributes if the file system has them, except SELinux's label, which is the container's, and
/// those that overlayfs keeps for itself.
fn attributes(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mut names = Vec::with_capacity(MAX_ATTRIBUTE);
    match rustix::fs::flistxattr(&from, rustix::buffer::spare_capacity(&mut names)) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    let names = names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    for name in names {
        let kept_out = [&b"security.selinux"[..], b"trusted.overlay."];
        if kept_out.iter().any(|prefix| name.to_bytes().starts_with(prefix)) {
            continue;
        }
        let mut value = Vec::with_capacity(MAX_ATTRIBUTE);
        rustix::fs::fgetxattr(&from, name, rustix::buffer::spare_capacity(&mut value))?;
        match rustix::fs::fsetxattr(&to, name, &value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => {}
            set => set?,
        }
    }
    Ok(())
}
