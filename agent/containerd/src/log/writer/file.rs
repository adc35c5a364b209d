//! The file of a container's log: opens, appends and rotates it, and handles a full disk.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::stamp::{Stamp, digits};
use crate::log::LogRotation;

/// The newest file of one container's log.
///
/// While it is open it is locked: a reader that can lock it knows that its writer has exited.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    rotation: LogRotation,
    file: Option<OwnedFd>,
    locked: bool,
    size: u64,
    /// The file ends with a partial line: the next write starts a new one.
    torn: bool,
    lost: LostLines,
    /// Second and number of the newest rotated file.
    last_rotation: Option<([u8; 15], i64)>,
}

/// Lines that could not be written since the last successful write.
#[derive(Debug, Default)]
struct LostLines {
    lines: u64,
    cause: Option<Errno>,
}

impl LogFile {
    /// Opens or creates the file and the directories above it. A failure is retried at the next write.
    pub(super) fn open(path: PathBuf, rotation: LogRotation) -> Self {
        let (lost, last_rotation) = (LostLines::default(), None);
        let mut file = Self { path, rotation, file: None, locked: false, size: 0, torn: false, lost, last_rotation };
        // A failure here occurs again at the first write, where there are lines to count.
        let _ = file.reopen();
        file
    }

    /// Whether another process had the file locked when it was opened.
    pub(super) fn is_contended(&self) -> bool {
        self.file.is_some() && !self.locked
    }

    /// Whether lines were lost that are not yet reported in the log.
    pub(super) fn has_losses(&self) -> bool {
        self.lost.lines > 0
    }

    /// How many bytes can still be written before the file is rotated.
    pub(super) fn room(&self) -> u64 {
        self.rotation.max_size.saturating_sub(self.size)
    }

    /// Appends whole lines with one write, then rotates if the file has reached its size.
    ///
    /// Lines that cannot be written are dropped and counted; the next successful write reports how many.
    pub(super) fn append(&mut self, lines: &[u8], stamp: &Stamp) {
        if let Err(cause) = self.prepare(stamp) {
            return self.lose(lines, cause);
        }
        if let Err((written, cause)) = self.write(lines) {
            self.torn = lines[..written].last().is_some_and(|last| *last != b'\n');
            return self.lose(&lines[written..], cause);
        }
        if self.size >= self.rotation.max_size {
            self.rotate(stamp);
        }
    }

    /// Prepares the file for a whole line: it is open, it is still in its directory, its last line is complete, and losses are
    /// reported.
    fn prepare(&mut self, stamp: &Stamp) -> Result<(), Errno> {
        match self.file.as_ref().map(rustix::fs::fstat) {
            // The size is read from the file: it may have been truncated to free disk space.
            Some(Ok(stat)) if stat.st_nlink > 0 => self.size = u64::try_from(stat.st_size).unwrap_or(0),
            _ => self.reopen()?,
        }
        if self.torn {
            self.write(b"\n").map_err(|(_, cause)| cause)?;
            self.torn = false;
        }
        if self.lost.lines > 0 {
            let mut notice = [0; NOTICE_LENGTH];
            let length = self.lost.notice(stamp, &mut notice);
            self.write(&notice[..length]).map_err(|(written, cause)| {
                self.torn = written > 0;
                cause
            })?;
            self.lost = LostLines::default();
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Errno> {
        self.file = None;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o640);
        let file = match rustix::fs::open(&self.path, flags, mode) {
            Err(Errno::NOENT) => {
                let parent = self.path.parent().unwrap_or(Path::new("/"));
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(parent)
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                rustix::fs::open(&self.path, flags, mode)?
            }
            other => other?,
        };
        // The lock only shows readers that the writer is running; without it they wait a little longer.
        self.locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
        self.size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        self.torn = self.size > 0 && !self.ends_with_newline();
        self.file = Some(file);
        Ok(())
    }

    /// Whether the existing file ends with a whole line; after a power cut it may not.
    fn ends_with_newline(&self) -> bool {
        let mut last = [0];
        rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::pread(file, &mut last, self.size - 1))
            .is_ok_and(|_| last == *b"\n")
    }

    /// Writes all of `bytes`, or returns how much was written and the error.
    fn write(&mut self, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        let Some(file) = &self.file else { return Err((0, Errno::BADF)) };
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::write(file, &bytes[written..]) {
                Ok(0) => return Err((written, Errno::NOSPC)),
                Ok(count) => {
                    written += count;
                    self.size += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(cause) => return Err((written, cause)),
            }
        }
        Ok(())
    }

    /// Counts `rest`, the end of a batch, as lost, a partly written line included.
    fn lose(&mut self, rest: &[u8], cause: Errno) {
        self.lost.lines += rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.lost.cause = Some(cause);
    }

    /// Renames the file as kubelet does, starts a new one and removes the oldest.
    /// A failed rename changes nothing: the file keeps growing and no line is lost.
    fn rotate(&mut self, stamp: &Stamp) {
        let Some(target) = self.rotated_path(stamp) else { return };
        if rustix::fs::rename(&self.path, &target).is_err() {
            return;
        }
        // A failure to open the new file is detected and counted by the next write.
        let _ = self.reopen();
        self.prune();
    }

    /// `0.log.20260102-150405`; with `-001` and so on when several are rotated within a second, which sorts after it.
    ///
    /// A name sorts after the one before it, also when the clock is set back: readers and `prune` sort by name, and the name
    /// of a removed file is not reused. `None`: too many for one second, the file grows until the next.
    fn rotated_path(&mut self, stamp: &Stamp) -> Option<PathBuf> {
        loop {
            let now = (stamp.file_suffix(), 0);
            self.last_rotation = match self.last_rotation {
                Some((suffix, number)) if suffix >= now.0 && number < 999 => (suffix, number + 1),
                Some((suffix, _)) if suffix == now.0 => return None,
                _ => now,
            }
            .into();
            let (suffix, number) = self.last_rotation?;
            let mut name = self.path.as_os_str().to_owned();
            name.push(".");
            name.push(OsStr::from_bytes(&suffix));
            if number > 0 {
                let mut ending = *b"-000";
                digits(&mut ending[1..], number);
                name.push(OsStr::from_bytes(&ending));
            }
            // A predecessor that crashed in the same second may have used it.
            match rustix::fs::statat(CWD, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Some(name.into()),
                Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Removes the oldest rotated files until, with the one being written, `max_files` are left.
    fn prune(&self) {
        let (Some(directory), Some(name)) = (self.path.parent(), self.path.file_name()) else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let keep = self.rotation.max_files.saturating_sub(1) as usize;
        loop {
            // Opened again for each pass: a raw directory can be read only once.
            let Ok(directory) = rustix::fs::open(directory, flags, Mode::empty()) else { return };
            let Some(oldest) = oldest_beyond(&directory, name.as_bytes(), keep) else { return };
            if rustix::fs::unlinkat(&directory, oldest, AtFlags::empty()).is_err() {
                return;
            }
        }
    }
}

/// The length of the longest notice.
const NOTICE_LENGTH: usize = 160;

impl LostLines {
    /// Formats the line that reports the loss into `buffer`; returns its length.
    fn notice(&self, stamp: &Stamp, buffer: &mut [u8; NOTICE_LENGTH]) -> usize {
        let mut count = [0; 20];
        let cause: &[u8] = match self.cause {
            Some(Errno::NOSPC | Errno::DQUOT) => b"no space left on device",
            Some(Errno::ROFS) => b"read-only file system",
            Some(Errno::ACCESS | Errno::PERM) => b"permission denied",
            Some(Errno::IO) => b"input/output error",
            _ => b"the file cannot be written",
        };
        let parts: [&[u8]; 6] = [
            stamp.text(),
            b" stderr F limpet: lost ",
            decimal(self.lines, &mut count),
            b" lines of this log: ",
            cause,
            b"\n",
        ];
        let mut length = 0;
        for part in parts {
            buffer[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        length
    }
}

/// `value` in decimal, without leading zeros.
fn decimal(value: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = value;
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &buffer[start..];
        }
    }
}

/// The rotated file of `name` that sorts first, if there are more than `keep` of them.
fn oldest_beyond(directory: &OwnedFd, name: &[u8], keep: usize) -> Option<std::ffi::CString> {
    let mut buffer = [MaybeUninit::uninit(); 2_048];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut count = 0;
    let mut oldest: Option<std::ffi::CString> = None;
    while let Some(Ok(entry)) = entries.next() {
        let entry = entry.file_name();
        if entry.to_bytes().strip_prefix(name).is_some_and(|rest| rest.starts_with(b".")) {
            count += 1;
            if oldest.as_deref().is_none_or(|oldest| entry < oldest) {
                oldest = Some(entry.to_owned());
            }
        }
    }
    oldest.filter(|_| count > keep)
}
