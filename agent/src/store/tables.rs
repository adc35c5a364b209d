//! The database's tables, and reads and writes within one transaction.

use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::Changes;
use super::record::{self, Content, Record};
use limpet_core::last_good::LastGood;
use limpet_model::directory_id::DirectoryId;
use limpet_model::source::SourceKind;

/// (source, origin) -> its last good manifests, see [`record`].
const LAST_GOOD: TableDefinition<'static, (&str, &str), &[u8]> = TableDefinition::new("last-good");
/// Path -> the directory last accepted there, see [`record`].
const DIRECTORIES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("accepted-directories");
/// `sequence` -> the sequence of the newest record.
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
pub(super) const SEQUENCE: &str = "sequence";
/// Records of removed origins stored per source. Only a salvage needs them, to not bring back older records.
pub(super) const MAX_REMOVED: usize = 64;

pub(super) type LastGoodTable = redb::ReadOnlyTable<(&'static str, &'static str), &'static [u8]>;

/// `None` in a database that was never written to.
pub(super) fn open_last_good(transaction: &ReadTransaction) -> Result<Option<LastGoodTable>, redb::Error> {
    match transaction.open_table(LAST_GOOD) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The part of `changes` that is not stored yet.
pub(super) fn not_stored<'a>(
    database: &Database,
    source: SourceKind,
    changes: &'a Changes,
) -> Result<Vec<(&'a str, Option<&'a LastGood>)>, redb::Error> {
    let table = open_last_good(&database.begin_read()?)?;
    let mut missing = Vec::new();
    for (origin, wanted) in &changes.last_good {
        let entry = table.as_ref().map(|table| table.get((source.as_str(), &**origin))).transpose()?.flatten();
        let same = match (entry, wanted) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(entry), wanted) => match (record::decode(entry.value()).map(|record| record.content), wanted) {
                (Some(Content::Removed), None) => true,
                (Some(Content::LastGood(stored)), Some(wanted)) => stored.same(wanted),
                _ => false,
            },
        };
        if !same {
            missing.push((&**origin, wanted.as_ref()));
        }
    }
    Ok(missing)
}

pub(super) fn is_accepted(
    database: &Database,
    accepted: Option<&(Arc<str>, DirectoryId)>,
) -> Result<bool, redb::Error> {
    let Some((path, id)) = accepted else { return Ok(true) };
    Ok(directory(database, path)? == Some(*id))
}

/// Writes records with the next sequence. A removed origin leaves a record, see [`super::salvage`].
pub(super) fn write_records(
    transaction: &WriteTransaction,
    source: SourceKind,
    records: &[(&str, Option<&LastGood>)],
) -> Result<(), redb::Error> {
    let sequence = next_sequence(transaction)?;
    let mut table = transaction.open_table(LAST_GOOD)?;
    for (origin, last_good) in records {
        let record = record::encode(sequence, source, origin, *last_good);
        table.insert((source.as_str(), *origin), record.as_slice())?;
    }
    if records.iter().any(|(_, last_good)| last_good.is_none()) {
        let mut gone = Vec::new();
        for entry in table.range((source.as_str(), "")..)? {
            let (key, value) = entry?;
            let (name, origin) = key.value();
            if name != source.as_str() {
                break;
            }
            if let Some(sequence) = record::removed_sequence(value.value()) {
                gone.push((sequence, origin.to_owned()));
            }
        }
        gone.sort_unstable();
        for (_, origin) in gone.iter().take(gone.len().saturating_sub(MAX_REMOVED)) {
            table.remove((source.as_str(), origin.as_str()))?;
        }
    }
    Ok(())
}

/// Records which directory is accepted at `path`, with the next sequence.
pub(super) fn put_directory(
    transaction: &WriteTransaction,
    source: SourceKind,
    path: &str,
    id: DirectoryId,
) -> Result<(), redb::Error> {
    let record = record::encode_directory(next_sequence(transaction)?, source, path, id);
    transaction.open_table(DIRECTORIES)?.insert(path, record.as_slice())?;
    Ok(())
}

fn next_sequence(transaction: &WriteTransaction) -> Result<u64, redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let sequence = meta.get(SEQUENCE)?.map_or(0, |entry| entry.value()).saturating_add(1);
    meta.insert(SEQUENCE, sequence)?;
    Ok(sequence)
}

/// The directory last accepted at `path`.
pub(super) fn directory(database: &Database, path: &str) -> Result<Option<DirectoryId>, redb::Error> {
    let table = match database.begin_read()?.open_table(DIRECTORIES) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let record = table.get(path)?.and_then(|entry| record::decode(entry.value()));
    Ok(match record {
        Some(Record { content: Content::Directory(id), .. }) => Some(id),
        _ => None,
    })
}
