//! Which part of a log is read, and in which form.

use super::entry::LogStream;

/// The part of a log to read. The default is all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Continue with new lines until the container has finished.
    pub follow: bool,
    /// Only so many of the newest lines.
    pub tail_lines: Option<u64>,
    /// Only lines of this time or later.
    pub since: Option<jiff::Timestamp>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Stop after so many bytes of output.
    pub limit_bytes: Option<u64>,
    /// Only this stream.
    pub stream: Option<LogStream>,
}
