//! Copies files and directories by descriptors.
//!
//! Names are looked up one at a time without following links, so neither tree leads anywhere else, whatever changes
//! in it meanwhile. Nothing is opened for its content before it is known to be a file or a directory: a device or a
//! FIFO in a container is never touched. Contents are copied by the kernel, so memory does not grow with them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::screen::printable;

/// The deepest nesting of directories: each level holds descriptors and a stack frame.
const MAX_DEPTH: usize = 256;
/// Progress is reported each time this many bytes were copied.
const PROGRESS_STEP: u64 = 16 << 20;

/// Why a copy ended early.
#[derive(Debug)]
pub(super) struct CopyError {
    /// The operation that failed, and the name it concerned.
    pub(super) what: String,
    pub(super) source: io::Error,
}

impl CopyError {
    pub(super) fn new(step: &str, name: &OsStr, source: io::Error) -> Self {
        Self { what: format!("{step} {}", printable(&name.to_string_lossy())), source }
    }
}

/// An existing file or directory, opened without read access.
#[derive(Debug)]
pub(super) struct Source {
    /// Opened with `O_PATH`.
    pub(super) opened: OwnedFd,
    /// Its name, for messages.
    pub(super) name: OsString,
}

/// A name in a directory, which may exist already; `.` is the directory itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) directory: BorrowedFd<'a>,
    /// A single path component.
    pub(super) name: &'a OsStr,
}

/// The owner of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The user of this command.
    Own,
    /// The owner of the original.
    Kept,
    /// This user and this group.
    User(u32, u32),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The mode bits that are preserved.
    pub(super) mode: u32,
    pub(super) owner: Owner,
    /// Whether symlinks are copied, as links.
    pub(super) links: bool,
}

/// Receives the progress of a copy.
pub(super) trait Report {
    /// Reports that `count` more bytes of this file were copied.
    fn bytes(&mut self, name: &OsStr, count: u64);
    /// Reports that this file is skipped.
    fn left_out(&mut self, name: &OsStr, why: &str);
}

impl Source {
    /// Opens what is at a path of this machine, following symlinks.
    pub(super) fn at(path: &Path) -> Result<Self, CopyError> {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|error| CopyError::new("open", path.as_os_str(), error.into()))?;
        Ok(Self { opened, name: path.as_os_str().to_owned() })
    }

    /// Opens the content.
    ///
    /// # Errors
    ///
    /// It is not a regular file, or cannot be read.
    pub(super) fn content(&self) -> Result<File, CopyError> {
        let failed = |source| CopyError::new("read", &self.name, source);
        let stat = rustix::fs::fstat(&self.opened).map_err(|error| failed(error.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => reopened(&self.opened, OFlags::RDONLY).map_err(failed),
            _ => Err(failed(io::Error::other("it is not a regular file"))),
        }
    }
}

/// The file behind an `O_PATH` descriptor.
fn reopened(opened: &OwnedFd, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?.into())
}

/// Copies a file, or a directory with everything below it.
///
/// # Errors
///
/// The first file that cannot be copied. What was copied before it stays.
pub(super) fn copy(from: &Source, to: Target<'_>, rules: &Rules, report: &mut dyn Report) -> Result<(), CopyError> {
    copy_at(from, to, rules, report, MAX_DEPTH)
}

/// Copies everything from `input` to a file.
///
/// # Errors
///
/// The file cannot be written, or the input cannot be read.
pub(super) fn stream(input: &mut impl Read, to: Target<'_>, rules: &Rules) -> Result<(), CopyError> {
    let failed = |source| CopyError::new("write", to.name, source);
    let mut file = create(to).map_err(failed)?;
    io::copy(input, &mut file).map_err(failed)?;
    finish(&file, 0o644, None, rules).map_err(failed)
}

fn copy_at(
    from: &Source,
    to: Target<'_>,
    rules: &Rules,
    report: &mut dyn Report,
    depth: usize,
) -> Result<(), CopyError> {
    let failed = |source| CopyError::new("copy", &from.name, source);
    let stat = rustix::fs::fstat(&from.opened).map_err(|error| failed(error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let source = from.content()?;
            let target = create(to).map_err(|source| CopyError::new("write", to.name, source))?;
            contents(&source, &target, |count| report.bytes(&from.name, count)).map_err(failed)?;
            finish(&target, stat.st_mode, Some(&stat), rules).map_err(failed)
        }
        FileType::Directory if depth == 0 => Err(failed(Errno::NAMETOOLONG.into())),
        FileType::Directory => {
            let target = make_directory(to).map_err(|source| CopyError::new("make", to.name, source))?;
            for name in names(from).map_err(failed)? {
                let child = child(from, &name).map_err(|source| CopyError::new("open", &name, source))?;
                let to = Target { directory: target.as_fd(), name: &name };
                copy_at(&child, to, rules, report, depth - 1)?;
            }
            finish(&target, stat.st_mode, Some(&stat), rules).map_err(failed)
        }
        FileType::Symlink if rules.links => link(from, to, &stat, rules).map_err(failed),
        other => {
            report.left_out(&from.name, why_not(other));
            Ok(())
        }
    }
}

fn why_not(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a symlink in a container may point anywhere",
        _ => "it is a device, a socket or a FIFO",
    }
}

/// The names in a directory, read completely before the first is copied, so that files which the copy adds are not
/// among them.
fn names(directory: &Source) -> io::Result<Vec<OsString>> {
    let listed = rustix::fs::openat(&directory.opened, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(listed)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn child(directory: &Source, name: &OsStr) -> io::Result<Source> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&directory.opened, name, flags, Mode::empty())?;
    Ok(Source { opened, name: name.to_owned() })
}

fn contents(from: &File, mut to: &File, mut copied: impl FnMut(u64)) -> io::Result<()> {
    loop {
        match io::copy(&mut from.take(PROGRESS_STEP), &mut to)? {
            0 => return Ok(()),
            count => copied(count),
        }
    }
}

/// Creates an empty file with this name. An existing file is reused; anything else except a directory is replaced.
fn create(to: Target<'_>) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(to.directory, to.name, flags, Mode::empty()) {
        Ok(file) => match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::RegularFile => match reopened(&file, OFlags::WRONLY | OFlags::TRUNC) {
                // The file is a running program, so it is replaced; its next start uses the copy.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                opened => return opened,
            },
            _ => {}
        },
        Err(Errno::NOENT) => return created(to),
        Err(error) => return Err(error.into()),
    }
    rustix::fs::unlinkat(to.directory, to.name, AtFlags::empty())?;
    created(to)
}

fn created(to: Target<'_>) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(to.directory, to.name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Creates a directory with this name. It may exist already, but not as a symlink.
fn make_directory(to: Target<'_>) -> io::Result<File> {
    match rustix::fs::mkdirat(to.directory, to.name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(to.directory, to.name, flags, Mode::empty())?.into())
}

fn link(from: &Source, to: Target<'_>, stat: &Stat, rules: &Rules) -> io::Result<()> {
    let target = rustix::fs::readlinkat(&from.opened, "", Vec::new())?;
    match rustix::fs::unlinkat(to.directory, to.name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::fs::symlinkat(&target, to.directory, to.name)?;
    match ids(rules.owner, Some(stat)) {
        Some((user, group)) => {
            Ok(rustix::fs::chownat(to.directory, to.name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
        }
        None => Ok(()),
    }
}

/// Sets owner and mode, in this order: a change of owner clears the set-user-ID bit.
fn finish(file: &File, mode: u32, from: Option<&Stat>, rules: &Rules) -> io::Result<()> {
    if let Some((user, group)) = ids(rules.owner, from) {
        rustix::fs::fchown(file, Some(user), Some(group))?;
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & rules.mode))?)
}

fn ids(owner: Owner, from: Option<&Stat>) -> Option<(Uid, Gid)> {
    let (user, group) = match (owner, from) {
        (Owner::User(user, group), _) => (user, group),
        (Owner::Kept, Some(stat)) => (stat.st_uid, stat.st_gid),
        (Owner::Kept, None) | (Owner::Own, _) => return None,
    };
    Some((Uid::from_raw(user), Gid::from_raw(group)))
}

/// Opens a directory of this machine.
///
/// # Errors
///
/// There is no directory at `path`.
pub(super) fn directory(path: &Path) -> Result<OwnedFd, CopyError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|error| CopyError::new("open", path.as_os_str(), error.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[derive(Default)]
    struct Left(Vec<OsString>);

    impl Report for Left {
        fn bytes(&mut self, _: &OsStr, _: u64) {}
        fn left_out(&mut self, name: &OsStr, _: &str) {
            self.0.push(name.to_owned());
        }
    }

    const RULES: Rules = Rules { mode: 0o777, owner: Owner::Own, links: false };

    fn copied(from: &Path, to: &Path, name: &str, rules: &Rules) -> (Result<(), CopyError>, Vec<OsString>) {
        let directory = directory(to).unwrap();
        let mut left = Left::default();
        let to = Target { directory: directory.as_fd(), name: OsStr::new(name) };
        let done = copy(&Source::at(from).unwrap(), to, rules, &mut left);
        left.0.sort();
        (done, left.0)
    }

    #[test]
    fn a_tree_keeps_odd_names_and_modes() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let odd = OsStr::from_bytes(b"-a\n\xff *");
        fs::create_dir_all(from.join("d").join(odd)).unwrap();
        fs::write(from.join("d").join(odd).join("f"), "content").unwrap();
        fs::set_permissions(from.join("d").join(odd).join("f"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o500)).unwrap();
        symlink("d", from.join("link")).unwrap();
        let (done, left) = copied(&from, place.path(), "to", &RULES);
        done.unwrap();
        assert_eq!(left, ["link"]);
        let file = place.path().join("to/d").join(odd).join("f");
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o751);
        assert_eq!(fs::metadata(place.path().join("to/d")).unwrap().permissions().mode() & 0o7777, 0o500);
        let (done, left) = copied(&from, place.path(), "linked", &Rules { links: true, ..RULES });
        done.unwrap();
        assert_eq!((left.len(), fs::read_link(place.path().join("linked/link")).unwrap()), (0, "d".into()));
    }

    #[test]
    fn a_link_at_the_other_end_is_replaced_and_never_followed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("from/d")).unwrap();
        fs::create_dir_all(at("outside")).unwrap();
        fs::create_dir_all(at("to")).unwrap();
        fs::write(at("from/file"), "new").unwrap();
        fs::write(at("victim"), "old").unwrap();
        symlink(at("victim"), at("to/file")).unwrap();
        let (done, _) = copied(&at("from/file"), &at("to"), "file", &RULES);
        done.unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "old");
        assert_eq!(fs::read_to_string(at("to/file")).unwrap(), "new");
        symlink(at("outside"), at("to/d")).unwrap();
        fs::write(at("from/d/file"), "new").unwrap();
        let (done, _) = copied(&at("from/d"), &at("to"), "d", &RULES);
        assert_eq!(done.unwrap_err().what, "make d");
        assert!(!at("outside/file").exists());
    }

    #[test]
    fn a_fifo_is_not_opened_and_nesting_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        fs::create_dir(&from).unwrap();
        rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (done, left) = copied(&from, place.path(), "to", &RULES);
        done.unwrap();
        assert_eq!(left, ["fifo"]);
        let deep = "d/".repeat(MAX_DEPTH + 1);
        fs::create_dir_all(from.join(deep)).unwrap();
        let (done, _) = copied(&from, place.path(), "deep", &RULES);
        assert_eq!(done.unwrap_err().what, "copy d");
    }
}
