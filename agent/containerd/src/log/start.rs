//! Finds the first line to read, a number of lines before the end or at a time, without reading everything before it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::entry::{HEADER_LIMIT, LogEntry, LogStream};
use super::paths::among_generations;
use super::read_options::ReadOptions;
use limpet_log::directory::open_file;

/// How far before the wanted lines the beginnings of their parts are searched, in bytes.
const BEGINNING_LIMIT: u64 = 1 << 20;
/// The size of a backward read in bytes.
const BLOCK: usize = 32 << 10;

/// The position at which reading begins.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) file: File,
    /// The offset of the first line to read.
    pub(super) offset: u64,
    /// How many entries of stdout and of stderr to skip from there on.
    pub(super) skip: [u64; 2],
}

/// Opens the file of the log at `path` in which reading begins, and determines the offset of the first line.
///
/// # Errors
///
/// `NotFound` if the log has no file.
pub(super) fn find(path: &Path, options: &ReadOptions) -> io::Result<Start> {
    among_generations(path, |files| find_in(files, options))
}

fn find_in(files: &[PathBuf], options: &ReadOptions) -> io::Result<Start> {
    let mut search = Backwards::new(options);
    let mut oldest = None;
    for file in files.iter().rev() {
        let file = match open_file(file) {
            // A rotation has removed it since the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let Some(offset) = search.scan(&file)? {
            return Ok(Start { file, offset, skip: search.skip() });
        }
        let reached = options.since.is_some_and(|since| begins_before(&file, since));
        oldest = Some(file);
        if reached {
            break;
        }
    }
    let start = oldest.map(|file| Start { file, offset: 0, skip: search.skip() });
    start.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no log file"))
}

/// Whether all files before this one are older than requested.
fn begins_before(file: &File, since: jiff::Timestamp) -> bool {
    let mut head = [0; HEADER_LIMIT];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    LogEntry::parse(&head[..length]).and_then(|entry| entry.timestamp()).is_some_and(|time| time < since)
}

/// Counts lines from the end of a log backward, across files.
///
/// A line of several parts counts once, at its last part. Parts of two streams may alternate, so a wanted line may
/// begin before unwanted lines; reading then begins there and skips those.
struct Backwards {
    /// `None` if all lines are wanted.
    wanted: Option<u64>,
    stream: Option<LogStream>,
    counted: u64,
    streams: [Seen; 2],
    /// Set once all lines are counted: how many more bytes to search for their beginnings.
    beyond: Option<u64>,
}

/// The counts of a stream.
#[derive(Debug, Default)]
struct Seen {
    /// The number of its entries.
    entries: u64,
    /// How many of the newest entries are wanted.
    wanted: u64,
    /// Whether the oldest wanted entry begins a line, so that none before it is wanted.
    complete: bool,
}

impl Backwards {
    fn new(options: &ReadOptions) -> Self {
        let (wanted, stream) = (options.tail_lines, options.stream);
        Self { wanted, stream, counted: 0, streams: Default::default(), beyond: None }
    }

    /// The unwanted entries by stream.
    fn skip(&self) -> [u64; 2] {
        self.streams.each_ref().map(|seen| seen.entries - seen.wanted)
    }

    /// Takes the entry before those seen so far. Returns whether reading begins after it.
    fn take(&mut self, header: &[u8], wanted: u64) -> bool {
        // Beyond the header the text may be truncated, which does not matter here.
        let header = header.split(|byte| *byte == b'\n').next().unwrap_or(header);
        let Some(entry) = LogEntry::parse(header) else { return false };
        if self.stream.is_some_and(|stream| stream != entry.stream) {
            return false;
        }
        let index = usize::from(entry.stream == LogStream::Stderr);
        let Some(seen) = self.streams.get_mut(index) else { return false };
        if self.beyond.is_none() {
            // A final line without its end counts as a line.
            let ends_line = !entry.partial || seen.entries == 0;
            if !ends_line || self.counted < wanted {
                self.counted += u64::from(ends_line);
                seen.entries += 1;
                seen.wanted = seen.entries;
                return false;
            }
            seen.complete = true;
            self.beyond = Some(BEGINNING_LIMIT);
            for seen in &mut self.streams {
                seen.complete |= seen.entries == 0;
            }
        } else if !seen.complete && entry.partial {
            seen.entries += 1;
            seen.wanted = seen.entries;
            return false;
        } else {
            seen.complete = true;
        }
        if self.streams.iter().all(|seen| seen.complete) {
            return true;
        }
        // The wanted entries of this stream begin later than those of the other.
        if let Some(seen) = self.streams.get_mut(index) {
            seen.entries += 1;
        }
        false
    }

    /// Searches one file. Returns the offset at which reading begins if it is in this file.
    fn scan(&mut self, file: &File) -> io::Result<Option<u64>> {
        let Some(wanted) = self.wanted else { return Ok(None) };
        let mut end = file.metadata()?.len();
        // The beginning of the lines counted so far. Text after the last newline is not a line yet.
        let mut begin = None;
        // The block before `end` and the beginning of the next, because a header may cross the boundary.
        let mut block = vec![0; BLOCK + HEADER_LIMIT];
        let mut carried = 0;
        while end > 0 {
            let start = end.saturating_sub(BLOCK as u64);
            let length = usize::try_from(end - start).unwrap_or(BLOCK);
            block.copy_within(0..carried, length);
            read_exact_at(file, &mut block[..length], start)?;
            let known = length + carried;
            let newlines = (0..length).rev().filter(|index| block[*index] == b'\n').map(|index| index + 1);
            // The first line of the file has no newline before it.
            let first = (start == 0).then_some(0);
            for index in newlines.chain(first) {
                let line = start + index as u64;
                let Some(next) = begin.replace(line) else {
                    // This is the end of the file, or an unfinished line.
                    if wanted == 0 {
                        return Ok(Some(line));
                    }
                    continue;
                };
                if next != line && self.take(&block[index..known.min(index + HEADER_LIMIT)], wanted) {
                    return Ok(Some(next));
                }
            }
            if let Some(left) = &mut self.beyond {
                *left = left.saturating_sub(BLOCK as u64);
                if *left == 0 && begin.is_some() {
                    return Ok(begin);
                }
            }
            carried = known.min(HEADER_LIMIT);
            end = start;
        }
        Ok(None)
    }
}

/// Reads what exists; a file that was truncated meanwhile leaves zeros, which are not lines.
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, offset)? {
            0 => {
                buffer.fill(0);
                return Ok(());
            }
            count => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}
