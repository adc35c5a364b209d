//! The primitives the exchange is built on. The loom model checker supplies its own (`agent/core/tests/exchange.rs`).

use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
pub(super) use futures_util::task::AtomicWaker;

use crate::source::SourceSnapshot;

/// What a source publishes.
pub(super) type Value = Arc<SourceSnapshot>;

/// Holds the newest value; neither storing nor loading waits.
#[derive(Debug)]
pub(super) struct Cell(ArcSwap<SourceSnapshot>);

impl Cell {
    pub(super) fn new() -> Self {
        Self(ArcSwap::default())
    }

    pub(super) fn store(&self, value: Value) {
        self.0.store(value);
    }

    pub(super) fn load(&self) -> Value {
        self.0.load_full()
    }
}
