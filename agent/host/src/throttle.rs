//! Limits how many bytes per second are read, over all readers that share it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How far ahead of the rate readers may be, so that small pieces need no pause of their own.
const AHEAD: Duration = Duration::from_millis(100);

/// The limit; without one nobody waits. Clones are one limit.
#[derive(Debug, Clone, Default)]
pub struct Throttle(Option<Arc<Mutex<Pace>>>);

/// When what was read so far would have been read at the rate.
#[derive(Debug)]
struct Pace {
    bytes_per_second: u64,
    due: Option<Instant>,
}

impl Pace {
    /// Until when the reader of so many bytes has to wait.
    fn next(&mut self, bytes: usize, now: Instant) -> Instant {
        let begun = self.due.map_or(now, |due| due.max(now));
        let nanos = (bytes as u128).saturating_mul(1_000_000_000) / u128::from(self.bytes_per_second.max(1));
        let due = begun + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.due = Some(due);
        due.checked_sub(AHEAD).unwrap_or(now)
    }
}

impl Throttle {
    /// A limit of so many bytes per second.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self(bytes_per_second.map(|bytes_per_second| Arc::new(Mutex::new(Pace { bytes_per_second, due: None }))))
    }

    /// Waits as long as the reading of so many bytes would have taken at the rate.
    pub async fn read(&self, bytes: usize) {
        let Some(pace) = &self.0 else { return };
        let until = pace.lock().unwrap_or_else(PoisonError::into_inner).next(bytes, Instant::now());
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_share_the_rate_and_do_not_save_it_up() {
        let throttle = Throttle::new(Some(1_000));
        let began = Instant::now();
        let other = throttle.clone();
        for _ in 0..5 {
            throttle.read(500).await;
            other.read(500).await;
        }
        let took = began.elapsed();
        assert!((Duration::from_millis(4_900)..Duration::from_millis(5_010)).contains(&took), "{took:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        throttle.read(2_000).await;
        assert!(began.elapsed() >= Duration::from_millis(1_900), "{:?}", began.elapsed());
        let began = Instant::now();
        Throttle::default().read(usize::MAX).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
