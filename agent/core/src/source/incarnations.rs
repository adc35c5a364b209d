//! Tells a workload that is removed and comes again from one that is edited, also for a reader that missed the snapshot
//! without it: a slot keeps only the newest.

use imbl::OrdMap;
use limpet_model::object::ObjectKey;

/// The workloads of a source, each with a number that it keeps until it is removed.
#[derive(Debug, Clone, Default)]
pub struct Incarnations {
    numbers: OrdMap<ObjectKey, u64>,
    last: u64,
}

impl Incarnations {
    /// Notes whether the source has that object. It is to be called for each one that comes or goes.
    pub fn note(&mut self, key: &ObjectKey, exists: bool) {
        if !exists {
            self.numbers.remove(key);
        } else if key.kind.is_workload() && !self.numbers.contains_key(key) {
            self.last += 1;
            self.numbers.insert(key.clone(), self.last);
        }
    }

    /// The number of a workload; `None` if the source has none of that key, or does not number them.
    pub fn number(&self, key: &ObjectKey) -> Option<u64> {
        self.numbers.get(key).copied()
    }

    /// The workloads that are others than in `before`, which has them, too.
    pub fn replaced<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a ObjectKey> {
        self.numbers.diff(&before.numbers).filter_map(|item| match item {
            imbl::ordmap::DiffItem::Update { new: (key, _), .. } => Some(key),
            imbl::ordmap::DiffItem::Add(..) | imbl::ordmap::DiffItem::Remove(..) => None,
        })
    }
}
