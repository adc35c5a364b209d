//! The protocol between the publishers and the only consumer: store, notify; wait, load.
//!
//! The consumer loads the newest value of each cell: an older value may be skipped, but the last one never is.
//! Publishing never waits. One task consumes, and any number publish. It uses no runtime, and only the primitives of
//! [`super::sync`], so that the loom model checker can run this very file (`agent/core/tests/exchange.rs`).

use std::task::{Context, Poll};

use super::sync::{AtomicBool, AtomicWaker, Cell, Ordering, Value};

/// `N` cells with one notification for all of them.
#[derive(Debug)]
pub(crate) struct Exchange<const N: usize> {
    cells: [Cell; N],
    notified: AtomicBool,
    consumer: AtomicWaker,
}

impl<const N: usize> Exchange<N> {
    /// Cells with their initial values, without a notification.
    pub(crate) fn new() -> Self {
        Self {
            cells: std::array::from_fn(|_| Cell::new()),
            notified: AtomicBool::new(false),
            consumer: AtomicWaker::new(),
        }
    }

    /// Replaces the value of a cell and notifies the consumer.
    pub(crate) fn publish(&self, cell: usize, value: Value) {
        self.cells[cell].store(value);
        // This is a swap and not a store, so that a consumer that sees the last notification sees the values of all
        // earlier ones.
        self.notified.swap(true, Ordering::AcqRel);
        self.consumer.wake();
    }

    /// The newest value of every cell.
    pub(crate) fn load(&self) -> [Value; N] {
        std::array::from_fn(|cell| self.cells[cell].load())
    }

    /// Ready if notified since it was last ready. Values that are loaded afterwards are the notified ones, or newer.
    pub(crate) fn poll_published(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.notified.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.consumer.register(context.waker());
        // A notification between the first check and the registration would be lost otherwise.
        if self.notified.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}
