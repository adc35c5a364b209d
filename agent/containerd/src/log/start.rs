//! Finds where reading begins, a number of lines before the end or at a time, without reading everything before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::directory::open_file;
use super::entry::{Entry, HEADER_LIMIT, LogStream};
use super::paths::among_generations;
use super::reader::ReadOptions;

/// Bytes read at once while searching backwards.
const BLOCK: usize = 32 << 10;

/// Opens the file of the log at `path` in which reading begins, and returns the offset of the first line.
///
/// # Errors
/// `NotFound` when the log has no file.
pub(super) fn find(path: &Path, options: &ReadOptions) -> io::Result<(File, u64)> {
    among_generations(path, |files| find_in(files, options))
}

fn find_in(files: &[PathBuf], options: &ReadOptions) -> io::Result<(File, u64)> {
    let mut count = Backwards { wanted: options.tail_lines, stream: options.stream, found: 0 };
    let mut oldest = None;
    for file in files.iter().rev() {
        let file = match open_file(file) {
            // Removed by a rotation since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let Some(offset) = count.scan(&file)? {
            return Ok((file, offset));
        }
        let reached = options.since.is_some_and(|since| begins_before(&file, since));
        oldest = Some(file);
        if reached {
            break;
        }
    }
    oldest.map(|file| (file, 0)).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no log file"))
}

/// Whether all files before this one are older than requested.
fn begins_before(file: &File, since: jiff::Timestamp) -> bool {
    let mut head = [0; HEADER_LIMIT];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    Entry::parse(&head[..length]).and_then(|entry| entry.timestamp()).is_some_and(|time| time < since)
}

/// Counts lines from the end of a log towards its beginning, over several files.
struct Backwards {
    /// `None`: all lines are wanted.
    wanted: Option<u64>,
    stream: Option<LogStream>,
    found: u64,
}

impl Backwards {
    /// Searches one file; the offset where reading has to begin if that is in this file.
    ///
    /// Lines are counted by their last part, so that a line of many parts counts once.
    fn scan(&mut self, file: &File) -> io::Result<Option<u64>> {
        let Some(wanted) = self.wanted else { return Ok(None) };
        let mut end = file.metadata()?.len();
        // Where the lines counted so far begin; text after the last newline is not a line yet.
        let mut begin = None;
        // The block before `end`, and the start of the next: a header may cross the boundary.
        let mut block = vec![0; BLOCK + HEADER_LIMIT];
        let mut carried = 0;
        while end > 0 {
            let start = end.saturating_sub(BLOCK as u64);
            let length = usize::try_from(end - start).unwrap_or(BLOCK);
            block.copy_within(0..carried, length);
            read_exact_at(file, &mut block[..length], start)?;
            let known = length + carried;
            let newlines = (0..length).rev().filter(|index| block[*index] == b'\n').map(|index| index + 1);
            // The file's first line begins without a newline before it.
            let first = (start == 0).then_some(0);
            for index in newlines.chain(first) {
                let line = start + index as u64;
                let Some(next) = begin.replace(line) else {
                    // The end of the file, or an unfinished line.
                    if wanted == 0 {
                        return Ok(Some(line));
                    }
                    continue;
                };
                if next == line || !self.counts(&block[index..known.min(index + HEADER_LIMIT)]) {
                    continue;
                }
                if self.found == wanted {
                    return Ok(Some(next));
                }
                self.found += 1;
            }
            carried = known.min(HEADER_LIMIT);
            end = start;
        }
        Ok(None)
    }

    fn counts(&self, header: &[u8]) -> bool {
        // The header ends within the line or the line's text is truncated; neither matters here.
        let header = header.split(|byte| *byte == b'\n').next().unwrap_or(header);
        Entry::parse(header)
            .is_some_and(|entry| !entry.partial && self.stream.is_none_or(|stream| stream == entry.stream))
    }
}

/// Reads what exists: a file that was truncated meanwhile leaves zeros, which are not lines.
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
