//! A lock per key: work on one key is serialized, and work on different keys runs concurrently.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The locks that are held or waited for, by their keys.
#[derive(Debug)]
pub struct KeyedLock<K>(Mutex<HashMap<K, Arc<Semaphore>>>);

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> KeyedLock<K> {
    /// Waits for the lock of `key`, which is held until the guard is dropped.
    pub async fn lock(&self, key: K) -> KeyedLockGuard<'_, K> {
        let gate = {
            let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // The semaphore is never closed.
        let permit = gate.acquire_owned().await.ok();
        KeyedLockGuard { lock: self, key, permit }
    }
}

/// The lock of one key while it is held.
#[derive(Debug)]
pub struct KeyedLockGuard<'a, K: Eq + Hash> {
    lock: &'a KeyedLock<K>,
    key: K,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Drop for KeyedLockGuard<'_, K> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut gates = self.lock.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A waiting task also holds a reference to the semaphore.
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
    async fn a_key_is_locked_once_at_a_time_and_forgotten_when_unused() {
        let locks = KeyedLock::default();
        let first = locks.lock("a").await;
        let mut second = Box::pin(locks.lock("a"));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(locks.lock("b").now_or_never().is_some(), "another key does not wait");
        drop(first);
        drop(second.await);
        assert!(locks.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
    }
}
