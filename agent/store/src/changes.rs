//! The changes of one transaction, of any types of records.

use std::collections::BTreeMap;
use std::sync::Arc;

use redb::{Database, ReadableDatabase};

use super::history;
use super::seal::Sealer;
use super::table::{LimitRemoved, Put, Stored, Write, next_sequence};
use limpet_core::source::ManifestChange;
use limpet_model::source::SourceKind;

/// The changes of one transaction. If there are none, nothing is written.
#[derive(Debug, Default)]
pub struct Changes {
    /// By type and name.
    records: BTreeMap<(u8, Arc<str>), Box<dyn Write>>,
    /// The changes for the history, oldest first.
    history: Vec<Arc<ManifestChange>>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.history.is_empty()
    }

    /// Adds a record, in place of one of the same type and name; `None` removes the name.
    pub fn put<R: Stored>(&mut self, name: Arc<str>, record: Option<R>) {
        self.records.insert((R::TAG, name), Box::new(Put(record)));
    }

    /// Adds to the history; drops the oldest changes beyond the limit.
    pub fn remember(&mut self, changes: &[Arc<ManifestChange>]) {
        self.history.extend(changes.iter().filter(|change| change.pod.is_some()).cloned());
        let excess = self.history.len().saturating_sub(history::MAX_CHANGES);
        self.history.drain(..excess);
    }

    /// Adds later changes. The later record of a name counts.
    pub fn extend(&mut self, later: Self) {
        self.records.extend(later.records);
        self.remember(&later.history);
    }

    /// Whether all of them may be written.
    pub(super) fn may_be_written(&self, source: SourceKind, sealer: &Sealer) -> bool {
        self.records.iter().all(|((_, name), record)| record.may_be_written(source, name, sealer))
    }

    /// Writes what is not stored yet. Returns whether there was anything to write.
    pub(super) fn write(&self, database: &Database, source: SourceKind, sealer: &Sealer) -> Result<bool, redb::Error> {
        let reading = database.begin_read()?;
        let mut records = Vec::new();
        for ((tag, name), record) in &self.records {
            if record.is_new(&reading, source, name, sealer)? {
                records.push((*tag, &**name, record));
            }
        }
        let history = history::new_changes(database, &self.history)?;
        if records.is_empty() && history.is_empty() {
            return Ok(false);
        }
        let transaction = database.begin_write()?;
        history::write(&transaction, &history)?;
        if !records.is_empty() {
            let sequence = next_sequence(&transaction)?;
            let mut limits: BTreeMap<u8, LimitRemoved> = BTreeMap::new();
            for (tag, name, record) in records {
                record.write(&transaction, sequence, source, name, sealer)?;
                limits.extend(record.limit_removed().map(|limit| (tag, limit)));
            }
            limits.into_values().try_for_each(|limit| limit(&transaction, source))?;
        }
        transaction.commit()?;
        Ok(true)
    }
}
