//! The routes of a listener, which exist only while a client is connected. Those of one listener take 100 KiB, and a
//! node has several listeners, to which nobody is connected most of the time.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::Router;

/// Makes the routes of a listener when a client connects.
pub(super) struct OnDemand {
    make: Box<dyn Fn() -> Router + Send + Sync>,
    /// Those that the open connections use.
    current: Mutex<Weak<Router>>,
}

impl OnDemand {
    /// `make` is called whenever a client connects while no other is connected.
    pub(super) fn new(make: impl Fn() -> Router + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), current: Mutex::default() }
    }

    /// The routes, which a connection keeps until its end.
    pub(super) fn routes(&self) -> Arc<Router> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.upgrade().unwrap_or_else(|| {
            let made = Arc::new((self.make)());
            *current = Arc::downgrade(&made);
            made
        })
    }
}

/// Routes that are there all the time, because they are few.
impl From<Router> for OnDemand {
    fn from(routes: Router) -> Self {
        Self::new(move || routes.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn connections_share_routes_which_go_with_the_last_of_them() {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let listener = OnDemand::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Router::new()
        });
        assert_eq!(made.load(Ordering::Relaxed), 0, "no client has connected");
        let (first, second) = (listener.routes(), listener.routes());
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        drop(listener.routes());
        assert_eq!(made.load(Ordering::Relaxed), 1, "a client is still connected");
        let gone = Arc::downgrade(&second);
        drop(second);
        assert!(gone.upgrade().is_none());
        drop(listener.routes());
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }
}
