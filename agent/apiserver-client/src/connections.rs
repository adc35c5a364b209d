//! As many connections as requests need that run at a time.
//!
//! Over HTTP/2 a connection carries as many as its server allows, and a watch is one for as long as it lasts. One too many
//! would wait for the end of another, which may never come.

use std::sync::{Arc, Mutex, PoisonError};

/// How many requests run on one connection: RFC 9113, section 6.5.2, recommends servers to allow no fewer.
const MAX_CONCURRENT_REQUESTS: usize = 100;

/// The connections, each made when those before it are full.
pub(crate) struct Connections<T> {
    make: Box<dyn Fn() -> T + Send + Sync>,
    made: Mutex<Vec<(T, Arc<()>)>>,
}

/// A request's place on its connection, until it is dropped.
pub(crate) struct ConnectionSlot {
    _handle: Arc<()>,
}

impl<T: Clone> Connections<T> {
    /// None yet; `make` makes one.
    pub(crate) fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), made: Mutex::default() }
    }

    /// The first connection that has a place, and the place.
    pub(crate) fn acquire(&self) -> (T, ConnectionSlot) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // One of the handles is the list's own.
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
