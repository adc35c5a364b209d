//! Ends connections to clients that are gone while data is on its way to them. The timer runs only until the data has
//! arrived.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use limpet_host::tcp::Delivery;

/// The time from sending data to the first check of its delivery with the kernel, and between further checks.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The delivery state of one connection.
#[derive(Default)]
pub(super) struct Deliveries {
    /// The next check; `None` while all data has arrived.
    check: Option<Pin<Box<Sleep>>>,
    /// Whether data was sent since the last check.
    sent: bool,
}

impl Deliveries {
    /// Records that data is on its way.
    pub(super) fn sent(&mut self, context: &mut Context<'_>) {
        self.sent = true;
        if self.check.is_none() {
            let mut check = Box::pin(sleep(CHECK_INTERVAL));
            // The first poll registers the task for the wake-up.
            let _ = check.as_mut().poll(context);
            self.check = Some(check);
        }
    }

    /// Resolves once `delivery` reports that the client is gone. Calls it only when a check is due.
    pub(super) fn poll_lost(&mut self, delivery: impl Fn() -> Delivery, context: &mut Context<'_>) -> Poll<()> {
        while let Some(check) = &mut self.check {
            if check.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            match (delivery(), std::mem::take(&mut self.sent)) {
                (Delivery::Lost, _) => return Poll::Ready(()),
                (Delivery::Acknowledged, false) => self.check = None,
                (Delivery::Acknowledged, true) | (Delivery::Repeated, _) => {
                    check.as_mut().reset(Instant::now() + CHECK_INTERVAL);
                }
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    async fn lost(deliveries: &mut Deliveries, delivery: impl Fn() -> Delivery) {
        poll_fn(|context| deliveries.poll_lost(&delivery, context)).await;
    }

    async fn sent(deliveries: &mut Deliveries) {
        poll_fn(|context| {
            deliveries.sent(context);
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_gone_once_the_kernel_gives_up_what_was_sent() {
        let (mut deliveries, start, asked) = (Deliveries::default(), Instant::now(), Cell::new(0));
        let delivery = || {
            asked.set(asked.get() + 1);
            if asked.get() < 4 { Delivery::Repeated } else { Delivery::Lost }
        };
        sent(&mut deliveries).await;
        lost(&mut deliveries, delivery).await;
        assert_eq!((asked.get(), start.elapsed()), (4, 4 * CHECK_INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_checked_once_all_has_arrived() {
        let (mut deliveries, asked) = (Deliveries::default(), Cell::new(0));
        let delivery = || {
            asked.set(asked.get() + 1);
            Delivery::Acknowledged
        };
        let hour = 120 * CHECK_INTERVAL;
        assert!(timeout(hour, lost(&mut deliveries, delivery)).await.is_err());
        assert_eq!(asked.get(), 0, "nothing was sent");
        sent(&mut deliveries).await;
        assert!(timeout(hour, lost(&mut deliveries, delivery)).await.is_err());
        assert_eq!(asked.get(), 2, "what was sent since the first check may be on its way");
    }
}
