//! Tells one version of a file from another by its metadata.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Two writes within one tick of the kernel's clock get equal timestamps, so a file that was read this soon after its
/// change is read again at its next event.
pub(super) const TIMESTAMP_GRANULARITY: Duration = Duration::from_millis(50);
/// A file that was written in place this recently may be incomplete. Its writer's close causes an event. A scan
/// without an event ignores the file until then, or until it was not written for this long.
pub(super) const WRITE_SETTLE_TIME: Duration = Duration::from_secs(1);

/// Identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether it is the file `before`, written to within [`WRITE_SETTLE_TIME`].
    pub(super) fn is_being_written(&self, before: &Self, now: SystemTime) -> bool {
        (self.device, self.inode) == (before.device, before.inode)
            && self.modified != before.modified
            && now.duration_since(time(self.modified)).is_ok_and(|age| age < WRITE_SETTLE_TIME)
    }

    /// Whether a change after `now` would change the stamp.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        now.duration_since(time(self.changed)).is_ok_and(|age| age > TIMESTAMP_GRANULARITY)
    }
}

/// A stamp's seconds and nanoseconds since the Unix epoch as a time.
fn time((seconds, nanos): (i64, i64)) -> SystemTime {
    UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
}
