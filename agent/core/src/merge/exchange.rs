//! The protocol between those who publish and the one who takes: store, ring; wait, load.
//!
//! The newest value of each cell is what is taken: values that came faster than they were taken are skipped, a value
//! that came last never is. Publishing waits for nobody. One task takes; any number publish.
//! Free of any runtime, and built on what [`super::sync`] names, so that the model checker runs this very file
//! (`agent/core/tests/exchange.rs`).

use std::task::{Context, Poll};

use super::sync::{AtomicBool, AtomicWaker, Cell, Ordering, Value};

/// `N` cells, and one bell for all of them.
#[derive(Debug)]
pub(crate) struct Exchange<const N: usize> {
    cells: [Cell; N],
    rung: AtomicBool,
    taker: AtomicWaker,
}

impl<const N: usize> Exchange<N> {
    /// Cells with their first values, which nobody is told of.
    pub(crate) fn new() -> Self {
        Self { cells: std::array::from_fn(|_| Cell::new()), rung: AtomicBool::new(false), taker: AtomicWaker::new() }
    }

    /// Replaces the value of a cell and rings.
    pub(crate) fn publish(&self, cell: usize, value: Value) {
        self.cells[cell].store(value);
        // A swap and not a store: whoever hears the last ring sees what every ring before it was for.
        self.rung.swap(true, Ordering::AcqRel);
        self.taker.wake();
    }

    /// The newest value of every cell.
    pub(crate) fn load(&self) -> [Value; N] {
        std::array::from_fn(|cell| self.cells[cell].load())
    }

    /// Ready when the bell was rung since the last time it was; what is loaded afterwards is what was rung for, or newer.
    pub(crate) fn poll_published(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.rung.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.taker.register(context.waker());
        // A ring between the first look and the registration woke nobody.
        if self.rung.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}
