//! Tracks the leases of starts that may exist, so that a lease whose deletion failed is deleted later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limpet_model::container::ContainerId;

#[derive(Debug, Clone, Default)]
pub(crate) struct StartLeases(Arc<Mutex<Leases>>);

#[derive(Debug, Default)]
struct Leases {
    /// Counts starts, which makes each lease's id unique, so that deleting an earlier lease never affects a later
    /// one.
    starts: u64,
    /// The container of each lease, and whether its start still needs the lease.
    known: BTreeMap<String, (ContainerId, bool)>,
}

impl StartLeases {
    /// The id of a new lease for a start of the container.
    pub(crate) fn begin(&self, id: &ContainerId) -> String {
        let mut leases = self.lock();
        leases.starts += 1;
        let lease = format!("limpet-start-{id}-{}", leases.starts);
        leases.known.insert(lease.clone(), (id.clone(), true));
        lease
    }

    /// Records that the start no longer needs the lease.
    pub(crate) fn end(&self, lease: &str) {
        if let Some((_, needed)) = self.lock().known.get_mut(lease) {
            *needed = false;
        }
    }

    /// Records that the lease no longer exists.
    pub(crate) fn deleted(&self, lease: &str) {
        self.lock().known.remove(lease);
    }

    /// The leases that no start needs; with `id`, only those of that container.
    pub(crate) fn orphans(&self, id: Option<&ContainerId>) -> Vec<String> {
        let is_one = |owner: &ContainerId, needed: bool| !needed && id.is_none_or(|id| id == owner);
        let leases = self.lock();
        leases.known.iter().filter(|(_, (id, needed))| is_one(id, *needed)).map(|(lease, _)| lease.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_a_lease_that_no_start_needs_and_that_was_not_deleted() {
        let leases = StartLeases::default();
        let [web, db] = ["web", "db"].map(ContainerId::new);
        let [started, failed, other] = [&web, &web, &db].map(|id| leases.begin(id));
        [&started, &failed, &other].iter().for_each(|lease| leases.end(lease));
        leases.deleted(&started);
        let again = leases.clone().begin(&web);
        assert_eq!(leases.orphans(None), [other, failed.clone()]);
        assert_eq!(leases.orphans(Some(&web)), [&*failed]);
        assert_ne!(again, failed, "the next start of the container needs its own");
    }
}
