//! Converts log entries to the requested output: filtered, joined, with or without times, truncated at a limit.

use super::entry::{LogEntry, LogStream};
use super::read_options::ReadOptions;

/// How much of a line is buffered until its end is known. A longer line is returned in pieces.
const LINE_LIMIT: usize = 1 << 20;

/// Turns lines of a log file into text. Pure: bytes in, bytes out.
#[derive(Debug)]
pub(super) struct Render {
    timestamps: bool,
    since: Option<jiff::Timestamp>,
    stream: Option<LogStream>,
    /// Bytes up to the limit; `None`: no limit.
    remaining: Option<u64>,
    /// The entries of each stream to skip before the first one.
    skip: [u64; 2],
    lines: [Line; 2],
    out: Vec<u8>,
}

/// A stream's incomplete line. Streams interleave, so each has its own.
#[derive(Debug, Default)]
struct Line {
    open: bool,
    skipped: bool,
    bytes: Vec<u8>,
}

impl Render {
    pub(super) fn new(options: &ReadOptions, skip: [u64; 2]) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            stream: options.stream,
            remaining: options.limit_bytes,
            skip,
            lines: Default::default(),
            out: Vec::new(),
        }
    }

    /// Adds one line of the file, without its newline. An invalid line is skipped.
    pub(super) fn push(&mut self, line: &[u8]) {
        let Some(entry) = LogEntry::parse(line) else { return };
        let index = usize::from(entry.stream == LogStream::Stderr);
        if self.skip[index] > 0 {
            self.skip[index] -= 1;
            return;
        }
        if !self.lines[index].open {
            self.lines[index].open = true;
            self.lines[index].skipped = !self.wants(&entry);
            if self.timestamps {
                self.lines[index].bytes.extend_from_slice(entry.time);
                self.lines[index].bytes.push(b' ');
            }
        }
        let line = &mut self.lines[index];
        line.bytes.extend_from_slice(entry.text);
        if !entry.partial {
            line.bytes.push(b'\n');
            line.open = false;
        }
        if !line.open || line.bytes.len() > LINE_LIMIT {
            self.emit(index);
        }
    }

    /// Whether a line that begins with `entry` is requested. An invalid time counts as older than any.
    fn wants(&self, entry: &LogEntry<'_>) -> bool {
        self.stream.is_none_or(|stream| stream == entry.stream)
            && self.since.is_none_or(|since| entry.timestamp().is_some_and(|time| time >= since))
    }

    fn emit(&mut self, index: usize) {
        let line = &mut self.lines[index];
        if !line.skipped {
            let length = match &mut self.remaining {
                Some(remaining) => {
                    let length = line.bytes.len().min(usize::try_from(*remaining).unwrap_or(usize::MAX));
                    *remaining -= length as u64;
                    length
                }
                None => line.bytes.len(),
            };
            self.out.extend_from_slice(&line.bytes[..length]);
        }
        line.bytes.clear();
    }

    /// Returns lines that will not be completed.
    pub(super) fn finish(&mut self) {
        for index in 0..2 {
            self.emit(index);
        }
    }

    /// The number of output bytes.
    pub(super) fn ready(&self) -> usize {
        self.out.len()
    }

    /// Takes the output.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Whether the limit is reached, so that no more output follows.
    pub(super) fn is_full(&self) -> bool {
        self.remaining == Some(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-01T00:00:01Z stdout F one
2026-01-01T00:00:02Z stderr F two
torn
2026-01-01T00:00:03Z stdout P th
2026-01-01T00:00:03.5Z stderr F between
2026-01-01T00:00:04Z stdout P re
2026-01-01T00:00:05Z stdout F e
2026-01-01T00:00:06Z stdout P end";

    fn render(options: &ReadOptions) -> String {
        let mut render = Render::new(options, [0; 2]);
        LOG.lines().for_each(|line| render.push(line.as_bytes()));
        render.finish();
        String::from_utf8(render.take()).unwrap()
    }

    #[test]
    fn entries_are_filtered_joined_and_limited() {
        let all = ReadOptions::default();
        for (options, text) in [
            (all.clone(), "one\ntwo\nbetween\nthree\nend"),
            (ReadOptions { stream: Some(LogStream::Stderr), ..all.clone() }, "two\nbetween\n"),
            (ReadOptions { stream: Some(LogStream::Stdout), ..all.clone() }, "one\nthree\nend"),
            (
                ReadOptions { timestamps: true, stream: Some(LogStream::Stdout), ..all.clone() },
                "2026-01-01T00:00:01Z one\n2026-01-01T00:00:03Z three\n2026-01-01T00:00:06Z end",
            ),
            (ReadOptions { since: Some("2026-01-01T00:00:03.2Z".parse().unwrap()), ..all.clone() }, "between\nend"),
            (ReadOptions { limit_bytes: Some(6), ..all.clone() }, "one\ntw"),
            (ReadOptions { limit_bytes: Some(0), ..all }, ""),
        ] {
            assert_eq!(render(&options), text, "{options:?}");
        }
    }

    #[test]
    fn an_endless_line_is_returned_in_pieces() {
        let mut render = Render::new(&ReadOptions::default(), [0; 2]);
        let part = [b"2026-01-01T00:00:01Z stdout P ".as_slice(), &[b'x'; 16 << 10]].concat();
        (0..200).for_each(|_| render.push(&part));
        assert!(render.ready() >= 2 << 20, "{}", render.ready());
        render.push(b"2026-01-01T00:00:01Z stdout F !");
        assert_eq!(render.take().len(), 200 * (16 << 10) + 2);
    }
}
