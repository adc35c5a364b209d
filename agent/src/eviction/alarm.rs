//! Reports when processes wait for memory: the kernel's pressure stall information, which causes no wake-up while
//! there is enough. Memory may fall below a threshold without that, so it is measured at intervals as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use limpet_host::inotify::register;
use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where processes that wait for memory are counted.
pub const PRESSURE: &str = "/proc/pressure/memory";
/// Some process waits for 150 ms in 2 s. The kernel takes windows of 2 s from anybody.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// The alarm, where the kernel has one.
#[derive(Debug, Default)]
pub(super) struct MemoryAlarm(Option<AsyncFd<File>>);

impl MemoryAlarm {
    /// Sets it.
    pub(super) fn open() -> Self {
        match set() {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                tracing::info!(%error, "the kernel does not report memory pressure: memory is measured at intervals alone");
                Self(None)
            }
        }
    }

    /// Resolves when memory gets short.
    pub(super) async fn rings(&self) {
        let Some(file) = &self.0 else { return std::future::pending().await };
        match file.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime goes away.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Whether this kernel has the alarm. Blocks for a moment.
pub fn is_available() -> io::Result<()> {
    trigger().map(drop)
}

fn set() -> io::Result<AsyncFd<File>> {
    register(trigger()?, Interest::PRIORITY)
}

fn trigger() -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(PRESSURE)?;
    file.write_all(TRIGGER)?;
    Ok(file)
}
