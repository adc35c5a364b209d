//! Turns: of those that work on the same thing one does at a time, and the others wait for it alone.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The things that are worked on, by their keys.
#[derive(Debug)]
pub struct Turns<K>(Mutex<HashMap<K, Arc<Semaphore>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Waits until no other works on the thing of that key. Others may once the turn is dropped.
    pub async fn take(&self, key: K) -> Turn<'_, K> {
        let gate = {
            let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // It is never closed.
        let permit = gate.acquire_owned().await.ok();
        Turn { of: self, key, permit }
    }
}

/// The right to work on a thing.
#[derive(Debug)]
pub struct Turn<'a, K: Eq + Hash> {
    of: &'a Turns<K>,
    key: K,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut gates = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits has the gate as well.
        if gates.get(&self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_works_on_a_thing_and_nothing_is_kept_of_it() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let mut second = Box::pin(turns.take("a"));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(turns.take("b").now_or_never().is_some(), "another thing is not waited for");
        drop(first);
        drop(second.await);
        assert!(turns.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
    }
}
