//! Remembers the leases of starts that may exist, so that one whose deletion failed is deleted later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limpet_model::container::ContainerId;

/// The leases that may exist. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartLeases(Arc<Mutex<Leases>>);

#[derive(Debug, Default)]
struct Leases {
    /// How many starts there have been: each has a lease of its own, so that the deletion of an earlier one never meets it.
    starts: u64,
    /// The container of each lease, and whether its start needs the lease.
    known: BTreeMap<String, (ContainerId, bool)>,
}

impl StartLeases {
    /// The lease of a start of the container, which is about to be created.
    pub(crate) fn begin(&self, id: &ContainerId) -> String {
        let mut leases = self.lock();
        leases.starts += 1;
        let lease = format!("limpet-start-{id}-{}", leases.starts);
        leases.known.insert(lease.clone(), (id.clone(), true));
        lease
    }

    /// Notes that the start of a lease does not need it any more.
    pub(crate) fn end(&self, lease: &str) {
        if let Some((_, needed)) = self.lock().known.get_mut(lease) {
            *needed = false;
        }
    }

    /// Notes that a lease does not exist any more.
    pub(crate) fn deleted(&self, lease: &str) {
        self.lock().known.remove(lease);
    }

    /// Those that no start needs; with `id` those of that container alone.
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
