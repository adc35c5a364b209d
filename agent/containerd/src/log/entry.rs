//! One line of a CRI log: `2026-01-02T03:04:05.678901234Z stdout F text`.

/// The stream a container wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output, and all of a terminal's output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A parsed line of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogEntry<'a> {
    /// RFC 3339, with fractions and any offset: other runtimes write local time.
    pub(super) time: &'a [u8],
    pub(super) stream: LogStream,
    /// Whether the text continues in the stream's next entry.
    pub(super) partial: bool,
    pub(super) text: &'a [u8],
}

/// The longest header of an entry: time, stream and tag.
pub(super) const HEADER_LIMIT: usize = 64;

impl<'a> LogEntry<'a> {
    /// Parses a line without its newline; `None` for an invalid one, such as a fragment after a power cut.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let (time, rest) = split(line)?;
        let (stream, rest) = split(rest)?;
        // Tags are separated by colons and the first shows whether the line is complete.
        let (tags, text) = split(rest).unwrap_or((rest, b""));
        let is_time = time.len() >= 20 && time[4] == b'-' && time[10] == b'T' && time[0].is_ascii_digit();
        let stream = match stream {
            b"stdout" => LogStream::Stdout,
            b"stderr" => LogStream::Stderr,
            _ => return None,
        };
        let partial = match tags.split(|byte| *byte == b':').next() {
            Some(b"F") => false,
            Some(b"P") => true,
            _ => return None,
        };
        is_time.then_some(Self { time, stream, partial, text })
    }

    /// The entry's time; `None` when it is invalid.
    pub(super) fn timestamp(&self) -> Option<jiff::Timestamp> {
        std::str::from_utf8(self.time).ok()?.parse().ok()
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    Some((&bytes[..space], &bytes[space + 1..]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_writers_are_parsed() {
        for (line, stream, partial, text) in [
            ("2026-01-02T03:04:05.678901234Z stdout F a b", LogStream::Stdout, false, "a b"),
            ("2026-01-02T03:04:05.6+02:00 stderr P a", LogStream::Stderr, true, "a"),
            ("2026-01-02T03:04:05Z stdout F:x ", LogStream::Stdout, false, ""),
            ("2026-01-02T03:04:05Z stdout F", LogStream::Stdout, false, ""),
        ] {
            let entry = LogEntry::parse(line.as_bytes()).unwrap();
            assert_eq!((entry.stream, entry.partial, entry.text), (stream, partial, text.as_bytes()), "{line}");
            assert!(entry.timestamp().is_some(), "{line}");
        }
    }

    #[test]
    fn invalid_lines_are_refused() {
        for line in [
            "",
            "text",
            "2026-01-02T03:04",
            "2026-01-02T03:04:05Z stdin F a",
            "2026-01-02T03:04:05Z stdout X a",
            "yesterday-at-noon-or-so stdout F a",
            "\0\0\0\0 stdout F a",
        ] {
            assert_eq!(LogEntry::parse(line.as_bytes()), None, "{line}");
        }
    }
}
