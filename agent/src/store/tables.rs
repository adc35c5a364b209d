//! The database's tables, and what is read from and written to them within one transaction.

use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::Changes;
use super::record::{self, Content, Record};
use limpet_core::last_good::LastGood;
use limpet_model::directory_id::DirectoryId;
use limpet_model::source::SourceKind;

/// (source, origin) -> what was last good there, see [`record`].
const LAST_GOOD: TableDefinition<'static, (&str, &str), &[u8]> = TableDefinition::new("last-good");
/// Path -> the directory last accepted there, see [`record`].
const DIRECTORIES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("accepted-directories");
/// `sequence` -> the number of the newest record.
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
pub(super) const SEQUENCE: &str = "sequence";
/// Records of what is gone that a source may have. They only matter to a salvage, which would find older ones else.
pub(super) const MAX_GONE: usize = 64;

pub(super) type LastGoodTable = redb::ReadOnlyTable<(&'static str, &'static str), &'static [u8]>;

/// `None` in a database nothing was written to yet.
pub(super) fn open_last_good(transaction: &ReadTransaction) -> Result<Option<LastGoodTable>, redb::Error> {
    match transaction.open_table(LAST_GOOD) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What of `changes` is not in the database as it is.
pub(super) fn not_kept<'a>(
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
                (Some(Content::Gone), None) => true,
                (Some(Content::LastGood(kept)), Some(wanted)) => kept.same(wanted),
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

/// Writes records under the next number. What is gone leaves a record that says so, see [`super::salvage`].
pub(super) fn write_records(
    transaction: &WriteTransaction,
    source: SourceKind,
    records: &[(&str, Option<&LastGood>)],
) -> Result<(), redb::Error> {
    let sequence = next_sequence(transaction)?;
    let mut table = transaction.open_table(LAST_GOOD)?;
    for (origin, kept) in records {
        let record = record::encode(sequence, source, origin, *kept);
        table.insert((source.as_str(), *origin), record.as_slice())?;
    }
    if records.iter().any(|(_, kept)| kept.is_none()) {
        let mut gone = Vec::new();
        for entry in table.range((source.as_str(), "")..)? {
            let (key, value) = entry?;
            let (name, origin) = key.value();
            if name != source.as_str() {
                break;
            }
            if let Some(sequence) = record::gone(value.value()) {
                gone.push((sequence, origin.to_owned()));
            }
        }
        gone.sort_unstable();
        for (_, origin) in gone.iter().take(gone.len().saturating_sub(MAX_GONE)) {
            table.remove((source.as_str(), origin.as_str()))?;
        }
    }
    Ok(())
}

/// Notes which directory is accepted at `path`, under the next number.
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
