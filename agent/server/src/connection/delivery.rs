//! Ends connections to clients that are gone while something is on its way to them. The timer runs only until what was
//! sent has arrived.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use limpet_host::tcp::Delivery;

/// How long after something was sent its delivery is checked with the kernel, and how often from then on.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// What is known of what was sent on one connection.
#[derive(Default)]
pub(super) struct Deliveries {
    /// The next check; `None`: all that was sent has arrived.
    check: Option<Pin<Box<Sleep>>>,
    /// Something was sent since the last one.
    sent: bool,
}

impl Deliveries {
    /// Something is on its way now.
    pub(super) fn sent(&mut self, context: &mut Context<'_>) {
        self.sent = true;
        if self.check.is_none() {
            let mut check = Box::pin(sleep(CHECK_INTERVAL));
            // Its first poll has the task woken when it is time.
            let _ = check.as_mut().poll(context);
            self.check = Some(check);
        }
    }

    /// Resolves once the client is gone by what `delivery` says; reads it only when a check is due.
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

    /// Waits until the client is gone.
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
