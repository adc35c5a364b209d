//! The bound on concurrent container starts: as many as there are cores, not counting those that hang.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a start keeps its permit. One that takes longer waits for something and uses no processor: a mount of the
/// pod whose file system does not answer, or a hanging shim.
const PERMIT_HELD: Duration = Duration::from_secs(10);

/// Runs `start` with one of `permits`, which it releases after [`PERMIT_HELD`].
pub(super) async fn with_permit<T>(permits: &Semaphore, start: impl Future<Output = T>) -> T {
    // The semaphore is never closed; without a permit the start continues nevertheless.
    let permit = permits.acquire().await.ok();
    let mut start = std::pin::pin!(start);
    match timeout(PERMIT_HELD, &mut start).await {
        Ok(started) => started,
        Err(_) => {
            drop(permit);
            start.await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_that_hangs_gives_its_permit_to_others() {
        let permits = Semaphore::new(1);
        let hanging = with_permit(&permits, std::future::pending::<()>());
        let next = async {
            let began = Instant::now();
            (with_permit(&permits, async { began.elapsed() }).await, permits.available_permits())
        };
        tokio::select! {
            biased;
            () = hanging => {}
            (waited, free) = next => assert_eq!((waited, free), (PERMIT_HELD, 1)),
        }
    }
}
