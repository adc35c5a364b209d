//! The ring buffer of events: read when the kernel wakes the reader, never polled.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::Event;

/// The stream of events of one [`Loaded`](crate::Loaded).
pub struct Events {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        // SAFETY: a RingBuf owns one descriptor, never exchanges it, and closes it when dropped, after it was deregistered.
        #[allow(unsafe_code)]
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE)? };
        Ok(Self { ring })
    }

    /// The next event; cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            // First what is queued: the kernel wakes once for a whole batch.
            if let Some(event) = take(self.ring.get_mut()) {
                return Ok(event);
            }
            let mut ready = self.ring.readable_mut().await?;
            // Checked again after readiness was read: a later record makes it ready again.
            if let Some(event) = take(ready.get_inner_mut()) {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }

    /// The next queued event, if any.
    pub fn now(&mut self) -> Option<Event> {
        take(self.ring.get_mut())
    }
}

/// The next record that can be decoded.
fn take(ring: &mut RingBuf<MapData>) -> Option<Event> {
    loop {
        let record = ring.next()?;
        if let Some(event) = Event::decode(&record) {
            return Some(event);
        }
    }
}
