//! Selects the part of a log to read, and its form.

use super::entry::LogStream;

/// The part of a log to read. The default is all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Continue with new lines until the container has finished.
    pub follow: bool,
    /// Only this many of the newest lines.
    pub tail_lines: Option<u64>,
    /// Only lines from this time on.
    pub since: Option<jiff::Timestamp>,
    /// Whether each line begins with its time.
    pub timestamps: bool,
    /// Stop after this many bytes of output.
    pub limit_bytes: Option<u64>,
    /// Only this stream.
    pub stream: Option<LogStream>,
}
