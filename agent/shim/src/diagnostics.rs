//! Messages for the node's administrator, in containerd's log.

use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};

/// Writes a warning to the FIFO in a bundle, which containerd copies to its own log. The warning is dropped while
/// containerd is away.
pub(crate) fn warn(bundle: &Path, message: &str) {
    // Opened per message, since messages are rare, so that no descriptor stays open.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(fifo) = rustix::fs::open(bundle.join("log"), flags, Mode::empty()) else { return };
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let line = format!("time=@{seconds} level=warning runtime=io.containerd.limpet.v1 msg={message:?}\n");
    // Nobody reads it, or it is full.
    let _ = std::fs::File::from(fifo).write_all(line.as_bytes());
}
