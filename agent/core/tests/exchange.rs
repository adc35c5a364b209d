//! Model-checks the interleavings of the merge's exchange with loom: no publication and no wake-up is lost.
//!
//! Checks the agent's own source file, compiled against loom's primitives.
#![allow(clippy::unwrap_used)]

#[path = "../src/merge/exchange.rs"]
#[allow(dead_code, unreachable_pub)]
mod exchange;

/// loom's counterparts of `merge::sync`. A cell has the weakest memory ordering that an `ArcSwap` guarantees.
mod sync {
    use std::task::Waker;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub(crate) type Value = usize;

    #[derive(Debug)]
    pub(crate) struct Cell(AtomicUsize);

    impl Cell {
        pub(crate) fn new() -> Self {
            Self(AtomicUsize::new(0))
        }

        pub(crate) fn store(&self, value: Value) {
            self.0.store(value, Ordering::Release);
        }

        pub(crate) fn load(&self) -> Value {
            self.0.load(Ordering::Acquire)
        }
    }

    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl std::fmt::Debug for AtomicWaker {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("AtomicWaker")
        }
    }

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }
    }
}

use std::future::poll_fn;

use exchange::Exchange;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

/// Consumes until the values are `last`, as the merge does. A lost wake-up is a deadlock, which the checker reports.
fn consume_until<const N: usize>(exchange: &Exchange<N>, last: [usize; N]) {
    let mut seen = [0; N];
    while seen != last {
        block_on(poll_fn(|context| exchange.poll_published(context)));
        let now = exchange.load();
        assert!(now.iter().zip(&seen).all(|(now, seen)| now >= seen), "{now:?} after {seen:?}");
        seen = now;
    }
}

#[test]
fn the_last_value_of_a_burst_is_consumed() {
    loom::model(|| {
        let exchange = Arc::new(Exchange::<1>::new());
        let publisher = Arc::clone(&exchange);
        let publishing = thread::spawn(move || {
            publisher.publish(0, 1);
            publisher.publish(0, 2);
        });
        consume_until(&exchange, [2]);
        publishing.join().unwrap();
    });
}

#[test]
fn values_of_two_publishers_are_both_consumed() {
    // Three threads have too many interleavings for a test; all with up to three preemptions take a second.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let exchange = Arc::new(Exchange::<2>::new());
        let publishing = [0, 1].map(|cell| {
            let publisher = Arc::clone(&exchange);
            thread::spawn(move || publisher.publish(cell, 1))
        });
        consume_until(&exchange, [1, 1]);
        publishing.into_iter().for_each(|publishing| publishing.join().unwrap());
    });
}

#[test]
fn a_value_published_before_the_first_wait_is_consumed() {
    loom::model(|| {
        let exchange = Exchange::<2>::new();
        exchange.publish(1, 1);
        consume_until(&exchange, [0, 1]);
    });
}
