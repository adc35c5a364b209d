//! Waits by the wall clock: until a given time, or until the clock is set.
//!
//! A board without a battery starts in 1970. A task that waits for a date, or for a certificate to become valid, is
//! woken by the kernel when the clock is set, without reading the clock in between.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inotify::register;

/// Later than every relevant date, and accepted by every kernel.
const FAR_FUTURE: i64 = 1 << 34;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The time was reached.
    Reached,
    /// The clock was set, forwards or backwards.
    ClockSet,
}

/// Waits until the clock shows `at`, or until it is set; without `at`, only for the latter. Cancel safe.
///
/// # Errors
///
/// The kernel provides no timer.
pub async fn until(at: Option<Timestamp>) -> io::Result<Wake> {
    let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    // Zero would disarm the timer.
    let (seconds, nanoseconds) =
        at.map_or((FAR_FUTURE, 0), |at| (at.as_second().clamp(1, FAR_FUTURE), at.subsec_nanosecond().max(0)));
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once)?;
    let timer = register(timer, Interest::READABLE)?;
    loop {
        let mut ready = timer.readable().await?;
        match ready.try_io(expirations) {
            Ok(Ok(_)) => return Ok(Wake::Reached),
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => {
                return Ok(Wake::ClockSet);
            }
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

/// Waits until the clock shows `at`, or until it is set. Without a kernel timer, checks every minute. Cancel safe.
pub async fn reached(at: Timestamp) {
    if until(Some(at)).await.is_err() {
        let pause = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
        tokio::time::sleep(pause.min(Duration::from_secs(60))).await;
    }
}

/// The time zone with this name in the system's database (`/usr/share/zoneinfo`), or the system's own; `None` if
/// there is no such zone.
pub fn zone(name: Option<&str>) -> Option<TimeZone> {
    match name {
        Some("UTC") => Some(TimeZone::UTC),
        Some(name) => TimeZone::get(name).ok(),
        // UTC if nothing is configured.
        None => Some(TimeZone::system()),
    }
}

fn expirations(timer: &AsyncFd<OwnedFd>) -> io::Result<usize> {
    Ok(rustix::io::read(timer, &mut [0_u8; 8])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_time_that_has_come_ends_the_wait() -> io::Result<()> {
        for at in [Timestamp::UNIX_EPOCH, Timestamp::now()] {
            assert_eq!(until(Some(at)).await?, Wake::Reached);
        }
        let mut never = std::pin::pin!(until(None));
        assert!(futures_util::poll!(never.as_mut()).is_pending());
        Ok(())
    }
}
