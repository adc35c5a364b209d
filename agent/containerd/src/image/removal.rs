//! Removes images from containerd, but never one that a start has just reserved.
//!
//! A removal is decided by looking at the pods, and a pod may arrive between that look and the removal. So a start
//! reserves its image before it uses it: a removal that was decided earlier is refused, and one in progress is waited
//! for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use containerd_client::services::v1::DeleteImageRequest;
use tokio::sync::Notify;
use tonic::Code;

use super::content::Store;
use super::error::{CallError, ImageError};
use super::{ImageName, Images};

/// Images that starts have reserved, and images that are being removed, by digest.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    state: Mutex<Reserved>,
    removed: Notify,
}

#[derive(Debug, Default)]
struct Reserved {
    taken: HashMap<Arc<str>, Instant>,
    removing: HashSet<Arc<str>>,
}

impl Reservations {
    fn state(&self) -> MutexGuard<'_, Reserved> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an image. Returns whether it had to wait for the image's removal, so the image may be gone.
    pub(super) async fn reserve(&self, digest: &str) -> bool {
        let mut waited = false;
        loop {
            let removed = self.removed.notified();
            tokio::pin!(removed);
            // Registered before the check, so that no end of a removal is missed.
            removed.as_mut().enable();
            {
                let mut state = self.state();
                if !state.removing.contains(digest) {
                    state.taken.insert(digest.into(), tokio::time::Instant::now().into_std());
                    return waited;
                }
            }
            waited = true;
            removed.await;
        }
    }

    /// When each image was last reserved. Forgets images that are not `there`.
    pub(super) fn taken(&self, there: impl Fn(&str) -> bool) -> HashMap<Arc<str>, Instant> {
        let mut state = self.state();
        state.taken.retain(|digest, _| there(digest));
        state.taken.clone()
    }

    /// Begins a removal that was decided at `decided`; `None` if the image was reserved since. It ends when the
    /// result is dropped.
    fn remove(&self, digest: &str, decided: Instant) -> Option<Removing<'_>> {
        let mut state = self.state();
        if state.taken.get(digest).is_some_and(|taken| *taken >= decided) || !state.removing.insert(digest.into()) {
            return None;
        }
        Some(Removing { reservations: self, digest: digest.into() })
    }
}

/// A removal in progress.
struct Removing<'a> {
    reservations: &'a Reservations,
    digest: Arc<str>,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.reservations.state().removing.remove(&self.digest);
        self.reservations.removed.notify_waiters();
    }
}

impl Images {
    /// The digest of a name in containerd, reserved for a start, so that no earlier decision removes it.
    pub(super) async fn reserve_name(&self, name: &ImageName) -> Result<Option<String>, ImageError> {
        loop {
            let Some(digest) = self.target(name).await? else { return Ok(None) };
            if !self.inner.reservations.reserve(&digest).await {
                return Ok(Some(digest));
            }
        }
    }

    /// Removes an image with all its names and the content that only it refers to, and waits for containerd to do so.
    /// Returns false if a start has reserved it since `decided`, so it stays.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer, or refuses.
    pub async fn remove(&self, digest: &str, names: &[String], decided: Instant) -> Result<bool, ImageError> {
        let Some(_removing) = self.inner.reservations.remove(digest, decided) else { return Ok(false) };
        for (index, name) in names.iter().enumerate() {
            let last = index + 1 == names.len();
            let deleted = self.inner.store.delete_image(name, last).await;
            deleted.map_err(|error| ImageError::call(name, error))?;
            self.inner.forget(name);
        }
        self.inner.contents.send_modify(|changes| *changes = changes.wrapping_add(1));
        Ok(true)
    }
}

impl Store {
    /// Deletes the record of a name. With `collect`, waits until unreferenced content is removed.
    async fn delete_image(&self, name: &str, collect: bool) -> Result<(), CallError> {
        let request = DeleteImageRequest { name: name.to_owned(), sync: collect, ..Default::default() };
        match self.images().delete(self.client.request(request)).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Images.Delete", name, &status)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_a_start_took_after_the_decision_stays() {
        let reservations = Reservations::default();
        let decided = now();
        assert!(!reservations.reserve("a").await);
        assert!(reservations.remove("a", decided).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(reservations.remove("a", now()).is_some(), "decided after it was taken");
        assert!(reservations.remove("b", decided).is_some(), "never taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_the_removal_under_way_and_learns_of_it() {
        let reservations = Arc::new(Reservations::default());
        let removing = reservations.remove("a", now()).unwrap();
        let taking = Arc::clone(&reservations);
        let start = tokio::spawn(async move { taking.reserve("a").await });
        assert!(!reservations.reserve("b").await, "another image is not held up");
        tokio::task::yield_now().await;
        assert!(!start.is_finished());
        drop(removing);
        assert!(start.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_is_forgotten() {
        let reservations = Reservations::default();
        reservations.reserve("a").await;
        reservations.reserve("b").await;
        let taken = reservations.taken(|digest| digest == "a");
        assert_eq!(taken.keys().map(|digest| &**digest).collect::<Vec<_>>(), ["a"]);
        assert!(reservations.remove("b", now()).is_some());
    }
}
