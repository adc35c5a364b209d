//! The file of a container's log: opens, appends and rotates it, and handles a full disk.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::stamp::{LAST_SECOND, Stamp, digits, second_of_suffix};
use crate::LogRotation;
use crate::directory::{self, BELOW, DIRECTORY};

/// The newest file of a container's log.
///
/// It is locked while it is open: a reader that can lock it knows that its writer has exited.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    rotation: LogRotation,
    file: Option<OwnedFd>,
    locked: bool,
    size: u64,
    /// Whether the file ends with a partial line, so the next write starts a new one.
    torn: bool,
    lost: LostLines,
    /// The name of the newest rotated file.
    last_rotation: Option<Rotation>,
}

/// The name of a rotated file in order of age: its second, and its number within that second.
type Rotation = (i64, i64);

/// The highest number within a second.
const LAST_NUMBER: i64 = 999;

/// Lines that could not be written since the last successful write.
#[derive(Debug, Default)]
struct LostLines {
    lines: u64,
    cause: Option<Errno>,
}

impl LogFile {
    /// Opens or creates the file and its parent directories. A failure is retried at the next write.
    pub(super) fn open(path: PathBuf, rotation: LogRotation) -> Self {
        let (lost, last_rotation) = (LostLines::default(), None);
        let mut file = Self { path, rotation, file: None, locked: false, size: 0, torn: false, lost, last_rotation };
        // A failure here recurs at the first write, where there are lines to count.
        let _ = file.reopen();
        file
    }

    /// Whether another process had the file locked when it was opened.
    pub(super) fn is_contended(&self) -> bool {
        self.file.is_some() && !self.locked
    }

    /// Whether lines were lost that the log does not report yet.
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

    /// Prepares the file for a complete line: it is open, it is still in its directory, its last line is complete,
    /// and losses are reported.
    fn prepare(&mut self, stamp: &Stamp) -> Result<(), Errno> {
        match self.file.as_ref().map(rustix::fs::fstat) {
            // The size is read from the file, which may have been truncated to free disk space.
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
        let name = self.path.file_name().ok_or(Errno::INVAL)?;
        let directory = match directory::open(&self.path) {
            Err(Errno::NOENT) => directory::make(&self.path)?,
            other => other?,
        };
        // Opening a FIFO would wait for its reader.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | BELOW;
        let file = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o640))?;
        // The lock only tells readers that the writer is running; without it they wait a little longer.
        self.locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
        self.size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        self.torn = self.size > 0 && !ends_with_newline(&directory, name, self.size);
        self.file = Some(file);
        Ok(())
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

    /// Counts `rest`, the end of a batch, as lost, including a partly written line.
    fn lose(&mut self, rest: &[u8], cause: Errno) {
        self.lost.lines += rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.lost.cause = Some(cause);
    }

    /// Renames the file as kubelet does, starts a new one and removes the oldest. A failed rename changes nothing:
    /// the file keeps growing and no line is lost.
    fn rotate(&mut self, stamp: &Stamp) {
        let Some(name) = self.path.file_name().map(OsStr::to_owned) else { return };
        let Ok(directory) = directory::open(&self.path) else { return };
        let Some(target) = self.rotated_name(&directory, &name, stamp) else { return };
        if rustix::fs::renameat(&directory, &name, &directory, &target).is_err() {
            return;
        }
        // The next write detects and counts a failure to open the new file.
        let _ = self.reopen();
        self.prune(&directory, &name);
    }

    /// `0.log.20260102-150405`, with `-001` and so on, which sort after it, if several are rotated within a second.
    ///
    /// A name sorts after the previous one, even if the clock was set back or rotations are so frequent that names
    /// run ahead of it: readers and `prune` sort by name, and the name of a removed file is not reused. `None` if
    /// there is no later name.
    fn rotated_name(&mut self, directory: &OwnedFd, name: &OsStr, stamp: &Stamp) -> Option<OsString> {
        let mut last = self.last_rotation.or_else(|| newest(directory, name.as_bytes()));
        loop {
            let (second, number) = match last {
                Some((second, number)) if second >= stamp.second() && number < LAST_NUMBER => (second, number + 1),
                Some((second, _)) if second >= LAST_SECOND => return None,
                Some((second, _)) if second >= stamp.second() => (second + 1, 0),
                _ => (stamp.second(), 0),
            };
            last = Some((second, number));
            self.last_rotation = last;
            let mut rotated = name.to_owned();
            rotated.push(".");
            rotated.push(OsStr::from_bytes(&Stamp::new(second, 0).file_suffix()));
            if number > 0 {
                let mut ending = *b"-000";
                digits(&mut ending[1..], number);
                rotated.push(OsStr::from_bytes(&ending));
            }
            // A logger that crashed in the same second may have used it.
            match rustix::fs::statat(directory, &rotated, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Some(rotated),
                Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Removes the oldest rotated files until, with the one being written, `max_files` are left.
    fn prune(&self, directory: &OwnedFd, name: &OsStr) {
        let keep = self.rotation.max_files.saturating_sub(1) as usize;
        while let Some(oldest) = oldest_beyond(directory, name.as_bytes(), keep) {
            if rustix::fs::unlinkat(directory, oldest, AtFlags::empty()).is_err() {
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

/// Whether the existing file ends with a complete line, which it may not after a power cut.
fn ends_with_newline(directory: &OwnedFd, name: &OsStr, size: u64) -> bool {
    let mut last = [0];
    rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::NONBLOCK | BELOW, Mode::empty())
        .and_then(|file| rustix::io::pread(file, &mut last, size - 1))
        .is_ok_and(|_| last == *b"\n")
}

/// The newest rotated file of `name`, by its name.
fn newest(directory: &OwnedFd, name: &[u8]) -> Option<Rotation> {
    let mut buffer = [MaybeUninit::uninit(); 2_048];
    let listed = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty()).ok()?;
    let mut entries = RawDir::new(listed, &mut buffer);
    let mut newest = None;
    while let Some(Ok(entry)) = entries.next() {
        newest = newest.max(rotation(name, entry.file_name().to_bytes()));
    }
    newest
}

/// The rotation of the rotated `file`; `None` if it is not a rotated file of `name`.
fn rotation(name: &[u8], file: &[u8]) -> Option<Rotation> {
    let (suffix, rest) = file.strip_prefix(name)?.strip_prefix(b".")?.split_first_chunk()?;
    let number = match rest.strip_prefix(b"-") {
        Some(number) => std::str::from_utf8(number.get(..3)?).ok()?.parse().ok()?,
        None => 0,
    };
    Some((second_of_suffix(suffix)?, number))
}

/// The rotated file of `name` that sorts first, if there are more than `keep`.
fn oldest_beyond(directory: &OwnedFd, name: &[u8], keep: usize) -> Option<std::ffi::CString> {
    let mut buffer = [MaybeUninit::uninit(); 2_048];
    // Opened again for each pass, because a raw directory can be read only once.
    let listed = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty()).ok()?;
    let mut entries = RawDir::new(listed, &mut buffer);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
