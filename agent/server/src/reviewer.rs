//! The apiserver's reviews of users of kubelet's API, cached as long as kubelet caches them.
//!
//! A token is stored as a hash only. Invalid tokens have a cache of their own, so that a flood of them evicts no
//! user. A failed review is not cached, except for a short pause in which no request is repeated.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::expiring::Expiring;
use crate::settings::ServerSettings;
use limpet_cluster::{Access, ReviewError, Reviews, User};

/// The most cached answers of each kind.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();
/// The most concurrent reviews.
const MAX_REVIEWS: usize = 8;
/// The deadline of a review, its wait for a turn included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause in reviews after the apiserver was unreachable.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(2);

/// A hash, keyed by random bytes of this process.
type Key = [u8; 32];

/// Asks the apiserver, or answers from the cache.
pub(super) struct Reviewer {
    reviews: Arc<dyn Reviews>,
    key: Key,
    token_lifetime: Duration,
    allowed_lifetime: Duration,
    denied_lifetime: Duration,
    turns: Semaphore,
    memory: Mutex<ReviewCache>,
}

struct ReviewCache {
    users: Expiring<Key, Arc<User>>,
    invalid_tokens: Expiring<Key, ()>,
    access: Expiring<Key, bool>,
    unreachable: Option<Instant>,
}

impl Reviewer {
    /// Caches answers as long as `settings` say.
    pub(super) fn new(reviews: Arc<dyn Reviews>, settings: &ServerSettings) -> Self {
        let memory = ReviewCache {
            users: Expiring::new(MAX_REMEMBERED),
            invalid_tokens: Expiring::new(MAX_REMEMBERED),
            access: Expiring::new(MAX_REMEMBERED),
            unreachable: None,
        };
        Self {
            reviews,
            key: process_key(),
            token_lifetime: settings.token_lifetime,
            allowed_lifetime: settings.allowed_lifetime,
            denied_lifetime: settings.denied_lifetime,
            turns: Semaphore::new(MAX_REVIEWS),
            memory: Mutex::new(memory),
        }
    }

    /// The user of a token; `None` if the token is not valid.
    ///
    /// # Errors
    ///
    /// The apiserver has not decided, and nothing is cached.
    pub(super) async fn user(&self, token: &str) -> Result<Option<Arc<User>>, ReviewError> {
        let key = self.hash(token.as_bytes());
        let remembered = |memory: &mut ReviewCache| {
            let now = Instant::now();
            let user = memory.users.get(&key, now).map(Some);
            user.or_else(|| memory.invalid_tokens.get(&key, now).map(|()| None))
        };
        let asked = async || Ok(self.reviews.token(token).await?.map(Arc::new));
        let keep = |memory: &mut ReviewCache, user: &Option<Arc<User>>| match user {
            Some(user) => memory.users.insert(key, Arc::clone(user), Instant::now(), self.token_lifetime),
            None => memory.invalid_tokens.insert(key, (), Instant::now(), self.token_lifetime),
        };
        self.review(remembered, asked, keep).await
    }

    /// Whether the user may have this access.
    ///
    /// # Errors
    ///
    /// The apiserver has not decided, and nothing is cached.
    pub(super) async fn is_allowed(&self, user: &User, access: Access<'_>) -> Result<bool, ReviewError> {
        // Serialization cannot fail: both are structs of strings, lists and maps with string keys.
        let key = self.hash(&serde_json::to_vec(&(user, access)).unwrap_or_default());
        let remembered = |memory: &mut ReviewCache| memory.access.get(&key, Instant::now());
        let keep = |memory: &mut ReviewCache, allowed: &bool| {
            let lifetime = if *allowed { self.allowed_lifetime } else { self.denied_lifetime };
            memory.access.insert(key, *allowed, Instant::now(), lifetime);
        };
        self.review(remembered, async || self.reviews.access(user, access).await, keep).await
    }

    /// The cached answer, or else the answer that arrives in time, which is then cached.
    async fn review<T>(
        &self,
        remembered: impl Fn(&mut ReviewCache) -> Option<T>,
        asked: impl AsyncFnOnce() -> Result<T, ReviewError>,
        keep: impl FnOnce(&mut ReviewCache, &T),
    ) -> Result<T, ReviewError> {
        if let Some(known) = remembered(&mut self.memory()) {
            return Ok(known);
        }
        let end = Instant::now() + REVIEW_TIMEOUT;
        let turn = async {
            let _turn = self.turns.acquire().await.map_err(|_| ReviewError::Busy)?;
            if Instant::now() >= end {
                return Err(ReviewError::Busy);
            }
            {
                let mut memory = self.memory();
                // Another caller may have requested the same review meanwhile, with or without success.
                if let Some(known) = remembered(&mut memory) {
                    return Ok(known);
                }
                if memory.unreachable.is_some_and(|since| since.elapsed() < UNREACHABLE_PAUSE) {
                    return Err(ReviewError::Offline);
                }
            }
            let answer = asked().await;
            let mut memory = self.memory();
            match &answer {
                Ok(answer) => {
                    memory.unreachable = None;
                    keep(&mut memory, answer);
                }
                Err(error) if error.is_unreachable() => memory.unreachable = Some(Instant::now()),
                Err(_) => {}
            }
            answer
        };
        timeout_at(end, turn).await.unwrap_or(Err(ReviewError::Busy))
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, ReviewCache> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, bytes: &[u8]) -> Key {
        Sha256::new().chain_update(self.key).chain_update(bytes).finalize().into()
    }
}

/// Random bytes. Without them, a hash in a memory dump could be looked up.
fn process_key() -> Key {
    let mut key = Key::default();
    // The kernel's random numbers cannot fail once the pool is initialized, and 32 bytes come in one read.
    let _ = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty());
    key
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests;
