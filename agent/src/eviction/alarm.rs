//! Reports when processes wait for memory or for a disk, by the kernel's pressure stall information, which causes no
//! wake-up while there is enough. Either may become short without that, so they are measured at intervals as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use limpet_host::inotify::register;
use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The kernel's file about processes that wait for memory.
pub const MEMORY: &str = "/proc/pressure/memory";
/// The kernel's file about processes that wait for disks, which includes those that write faster than the disk does.
pub const DISKS: &str = "/proc/pressure/io";
/// A process waits for 150 ms within 2 s. The kernel accepts windows of 2 s from any user.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// An alarm, if the kernel supports it.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<AsyncFd<File>>);

impl Alarm {
    /// Sets the alarm for that file.
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
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Whether this kernel supports the alarm for memory. Blocks for a moment.
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
