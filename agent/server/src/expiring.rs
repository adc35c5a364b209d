//! A small cache whose entries expire. When it is full, it evicts the least recently used entry.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

/// A bounded map whose entries expire. Allocates nothing before its first entry.
#[derive(Debug)]
pub(super) struct Expiring<K: Hash + Eq, V> {
    entries: LruCache<K, (V, Instant)>,
    most: NonZeroUsize,
}

impl<K: Hash + Eq, V: Clone> Expiring<K, V> {
    /// Holds at most `most` entries.
    pub(super) fn new(most: NonZeroUsize) -> Self {
        Self { entries: LruCache::unbounded(), most }
    }

    /// The value for `key`, if it has not expired.
    pub(super) fn get(&mut self, key: &K, now: Instant) -> Option<V> {
        match self.entries.get(key) {
            Some((value, end)) if *end > now => Some(value.clone()),
            Some(_) => {
                self.entries.pop(key);
                None
            }
            None => None,
        }
    }

    /// Stores `value` for `lifetime`.
    pub(super) fn insert(&mut self, key: K, value: V, now: Instant, lifetime: Duration) {
        self.entries.put(key, (value, now + lifetime));
        if self.entries.len() > self.most.get() {
            self.entries.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_end_and_the_least_used_gives_way() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut expiring = Expiring::new(const { NonZeroUsize::new(2).unwrap() });
        expiring.insert("a", 1, now, second * 10);
        expiring.insert("b", 2, now, second);
        assert_eq!((expiring.get(&"a", now), expiring.get(&"b", now)), (Some(1), Some(2)));
        assert_eq!((expiring.get(&"a", now + second), expiring.get(&"b", now + second)), (Some(1), None));
        expiring.insert("c", 3, now, second);
        assert_eq!(expiring.get(&"a", now), Some(1));
        expiring.insert("d", 4, now, second);
        assert_eq!(
            [expiring.get(&"a", now), expiring.get(&"c", now), expiring.get(&"d", now)],
            [Some(1), None, Some(4)]
        );
    }
}
