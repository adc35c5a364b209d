//! An alarm on the cgroup above all pods: their memory reaches its limit, or has grown by a given amount.
//!
//! With cgroup v1 it is the eventfd of a usage threshold (`cgroup.event_control`), which kubelet uses too. cgroup v2
//! only reports that the group's own limit was reached (`memory.events.local`).

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{CgroupError, Cgroups, blocking};
use crate::inotify::register;
use limpet_model::pod::qos::QosClass;

/// A group this close to its limit, in bytes, counts as having reached it.
const LIMIT_TOLERANCE: u64 = 1 << 20;

/// An alarm that fires once.
#[derive(Debug)]
pub struct MemoryAlarm {
    file: AsyncFd<File>,
    interest: Interest,
}

impl Cgroups {
    /// Sets an alarm that fires when the pods use `more` bytes more than now, or have reached their limit.
    ///
    /// # Errors
    ///
    /// The kernel does not count the pods' memory or, with v2, they have no common limit.
    pub async fn memory_alarm(&self, more: u64) -> Result<MemoryAlarm, CgroupError> {
        let cgroups = self.clone();
        let set = move || {
            let (layout, hierarchies) = (&cgroups.shared.layout, &cgroups.shared.hierarchies);
            let group = layout.directory(&layout.level(QosClass::Guaranteed));
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let path = hierarchies.path("memory", &group).ok_or_else(missing);
            let set = path.and_then(|path| if hierarchies.is_v2() { at_limit(&path) } else { at_usage(&path, more) });
            match set {
                Ok((file, interest)) => Ok((file, interest, group)),
                Err(source) => Err(failed(group, source)),
            }
        };
        let (file, interest, group) = blocking(set).await?;
        let file = register(file, interest).map_err(|source| failed(group, source))?;
        Ok(MemoryAlarm { file, interest })
    }
}

impl MemoryAlarm {
    /// Resolves when the alarm fires. Cancel safe.
    pub async fn rings(&self) {
        if self.file.ready(self.interest).await.is_err() {
            // The tokio runtime is stopping.
            std::future::pending().await
        }
    }
}

fn failed(path: PathBuf, source: io::Error) -> CgroupError {
    CgroupError::File { operation: "watch the memory of", path, source }
}

/// v2: the file that changes when the group reaches its limit.
fn at_limit(group: &Path) -> io::Result<(File, Interest)> {
    if fs::read_to_string(group.join("memory.max"))?.trim() == "max" {
        return Err(io::Error::other("there is no limit"));
    }
    let mut events = File::open(group.join("memory.events.local"))?;
    // The kernel reports changes after the file was read.
    events.read_to_string(&mut String::new())?;
    Ok((events, Interest::PRIORITY))
}

/// v1: an eventfd that fires when the group uses `more` bytes more, or reaches its limit. Files that the kernel could
/// drop are counted too.
fn at_usage(group: &Path, more: u64) -> io::Result<(File, Interest)> {
    let value = |name: &str| -> io::Result<u64> {
        fs::read_to_string(group.join(name))?.trim().parse().map_err(io::Error::other)
    };
    let usage = File::open(group.join("memory.usage_in_bytes"))?;
    // The kernel counts in batches, so usage may never equal the limit exactly.
    let limit = value("memory.limit_in_bytes")?.saturating_sub(LIMIT_TOLERANCE);
    let now = value("memory.usage_in_bytes")?;
    if now >= limit {
        // Page cache has filled it, so no threshold is left to cross.
        return Err(io::Error::other("they have come to their limit"));
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let order = format!("{} {} {}", event.as_raw_fd(), usage.as_raw_fd(), now.saturating_add(more).min(limit));
    fs::write(group.join("cgroup.event_control"), order)?;
    Ok((File::from(event), Interest::READABLE))
}
