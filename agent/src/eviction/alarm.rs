//! Reports when processes wait for memory or for a disk: the kernel's pressure stall information, which causes no
//! wake-up while there is enough. Either may get short without that, so they are measured at intervals as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use limpet_host::inotify::register;
use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where processes that wait for memory are counted.
pub const MEMORY: &str = "/proc/pressure/memory";
/// Where processes that wait for disks are counted: so does one that writes faster than the disk does.
pub const DISKS: &str = "/proc/pressure/io";
/// Some process waits for 150 ms in 2 s. The kernel takes windows of 2 s from anybody.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// An alarm, where the kernel has one.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<AsyncFd<File>>);

impl Alarm {
    /// Sets it, for processes that are counted there.
    pub(super) fn open(pressure: &str) -> Self {
        match set(pressure) {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                tracing::info!(pressure, %error, "the kernel does not report pressure; it is measured at intervals only");
                Self(None)
            }
        }
    }

    /// Resolves when processes wait.
    pub(super) async fn rings(&self) {
        let Some(file) = &self.0 else { return std::future::pending().await };
        match file.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime goes away.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Whether this kernel has the alarm of memory. Blocks for a moment.
pub fn is_available() -> io::Result<()> {
    trigger(MEMORY).map(drop)
}

fn set(pressure: &str) -> io::Result<AsyncFd<File>> {
    register(trigger(pressure)?, Interest::PRIORITY)
}

fn trigger(pressure: &str) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(pressure)?;
    file.write_all(TRIGGER)?;
    Ok(file)
}
