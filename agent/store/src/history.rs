//! The last changes of each pod's manifest, as JSON, limited per pod and in total. Written in the transaction that
//! stores the manifest itself; lost when the database is damaged.

use std::collections::BTreeSet;
use std::sync::Arc;

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError, WriteTransaction,
};

use super::table::META;
use limpet_core::source::{ChangeKind, ManifestChange};

/// (`namespace/name`, number) -> a change. Numbers increase across all pods.
const HISTORY: TableDefinition<'static, (&str, u64), &[u8]> = TableDefinition::new("history");
/// The key of the next change's number in [`META`].
const NEXT: &str = "history";
/// How many changes are stored per pod.
pub(super) const MOST_OF_POD: usize = 20;
/// How many changes are stored for all pods, including removed ones: about 1 MB.
pub(super) const MAX_CHANGES: usize = 2_000;
/// How many are removed at once beyond the limit, so that not every change has to search for the oldest.
const SWEEP_SIZE: usize = MAX_CHANGES / 10;

/// The changes of one pod, oldest first. Unreadable entries are skipped.
pub(super) fn changes_of(database: &Database, pod: &str) -> Result<Vec<ManifestChange>, redb::Error> {
    let table = match database.begin_read()?.open_table(HISTORY) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut changes = Vec::new();
    for entry in table.range((pod, 0)..=(pod, u64::MAX))? {
        changes.extend(serde_json::from_slice(entry?.1.value()));
    }
    Ok(changes)
}

/// The changes worth writing. A manifest that is rejected for the same reasons as last time, which happens at each
/// start, is not.
pub(super) fn new_changes(
    database: &Database,
    changes: &[Arc<ManifestChange>],
) -> Result<Vec<Arc<ManifestChange>>, redb::Error> {
    let mut new_changes = Vec::new();
    for change in changes {
        let known = match (change.change, &change.pod) {
            (ChangeKind::Rejected, Some(pod)) => {
                changes_of(database, pod)?.last().is_some_and(|last| change.repeats(last))
            }
            (_, pod) => pod.is_none(),
        };
        if !known {
            new_changes.push(Arc::clone(change));
        }
    }
    Ok(new_changes)
}

/// Writes changes, and removes those beyond the limits.
pub(super) fn write(transaction: &WriteTransaction, changes: &[Arc<ManifestChange>]) -> Result<(), redb::Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut table = transaction.open_table(HISTORY)?;
    let mut meta = transaction.open_table(META)?;
    let mut next = meta.get(NEXT)?.map_or(0, |entry| entry.value());
    let mut pods = BTreeSet::new();
    for change in changes {
        let (Some(pod), Ok(text)) = (&change.pod, serde_json::to_vec(&**change)) else { continue };
        table.insert((pod.as_str(), next), text.as_slice())?;
        pods.insert(pod.as_str());
        next += 1;
    }
    meta.insert(NEXT, next)?;
    for pod in pods {
        let mut numbers = Vec::new();
        for entry in table.range((pod, 0)..=(pod, u64::MAX))? {
            numbers.push(entry?.0.value().1);
        }
        for number in &numbers[..numbers.len().saturating_sub(MOST_OF_POD)] {
            table.remove((pod, *number))?;
        }
    }
    if table.len()? > MAX_CHANGES as u64 {
        let mut all = Vec::new();
        for entry in table.iter()? {
            let (key, _) = entry?;
            let (pod, number) = key.value();
            all.push((number, pod.to_owned()));
        }
        all.sort_unstable();
        for (number, pod) in &all[..all.len() + SWEEP_SIZE - MAX_CHANGES] {
            table.remove((pod.as_str(), *number))?;
        }
    }
    Ok(())
}
