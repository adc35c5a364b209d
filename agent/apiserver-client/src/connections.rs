//! Opens as many connections as concurrent requests need.
//!
//! Over HTTP/2 a connection carries as many requests as its server allows, and a watch is one for its whole life. A
//! request above the limit would wait for another to end, which may never happen.

use std::sync::{Arc, Mutex, PoisonError};

/// The most requests on a connection: RFC 9113, section 6.5.2, recommends that servers allow at least as many.
const MAX_CONCURRENT_REQUESTS: usize = 100;

/// The connections; a new one is opened when all are full.
pub(crate) struct Connections<T> {
    make: Box<dyn Fn() -> T + Send + Sync>,
    made: Mutex<Vec<(T, Arc<()>)>>,
}

/// A request's slot on its connection, released on drop.
pub(crate) struct ConnectionSlot {
    _handle: Arc<()>,
}

impl<T: Clone> Connections<T> {
    /// Without connections at first; `make` opens one.
    pub(crate) fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), made: Mutex::default() }
    }

    /// The first connection with a free slot, and the slot.
    pub(crate) fn acquire(&self) -> (T, ConnectionSlot) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // The list itself holds one of the handles.
        let free = made.iter().find(|(_, places)| Arc::strong_count(places) <= MAX_CONCURRENT_REQUESTS);
        let (connection, places) = free.cloned().unwrap_or_else(|| {
            let new = ((self.make)(), Arc::default());
            made.push(new.clone());
            new
        });
        (connection, ConnectionSlot { _handle: places })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_connection_is_made_when_those_before_it_are_full() {
        let count = AtomicUsize::new(0);
        let connections = Connections::new(move || count.fetch_add(1, Ordering::Relaxed));
        let mut first: Vec<_> = (0..MAX_CONCURRENT_REQUESTS).map(|_| connections.acquire()).collect();
        assert!(first.iter().all(|(connection, _)| *connection == 0));
        let second = connections.acquire();
        assert_eq!(second.0, 1);
        first.pop();
        assert_eq!(connections.acquire().0, 0, "a place is free again");
    }
}
