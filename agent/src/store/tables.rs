//! The database's tables, and what is read from and written to them within one transaction.

use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::record::{self, Record};
use super::{Changes, Kept};
use crate::source::SourceKind;
use crate::watch::DirectoryId;

/// (source, origin) -> what was last good there, see [`record`].
const LAST_GOOD: TableDefinition<'static, (&str, &str), &[u8]> = TableDefinition::new("last-good");
/// Path -> (device, inode) of the directory last accepted there.
const DIRECTORIES: TableDefinition<'static, &str, (u64, u64)> = TableDefinition::new("directories");
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
) -> Result<Vec<(&'a str, Option<&'a Kept>)>, redb::Error> {
    let table = open_last_good(&database.begin_read()?)?;
    let mut missing = Vec::new();
    for (origin, wanted) in &changes.last_good {
        let entry = table.as_ref().map(|table| table.get((source.as_str(), &**origin))).transpose()?.flatten();
        let same = match (entry, wanted) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(entry), wanted) => match (record::decode(entry.value()), wanted) {
                (Some(Record { kept: None, .. }), None) => true,
                (Some(Record { kept: Some(kept), .. }), Some(wanted)) => kept.same(wanted),
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
    directory: Option<&(Arc<str>, DirectoryId)>,
) -> Result<bool, redb::Error> {
    let Some((path, id)) = directory else { return Ok(true) };
    match database.begin_read()?.open_table(DIRECTORIES) {
        Ok(table) => Ok(table.get(&**path)?.is_some_and(|entry| entry.value() == (id.device, id.inode))),
        Err(TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes records under the next number. What is gone leaves a record that says so, see [`super::salvage`].
pub(super) fn write_records(
    transaction: &WriteTransaction,
    source: SourceKind,
    records: &[(&str, Option<&Kept>)],
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let sequence = meta.get(SEQUENCE)?.map_or(0, |entry| entry.value()).saturating_add(1);
    meta.insert(SEQUENCE, sequence)?;
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

/// Notes which directory is accepted at `path`.
pub(super) fn put_directory(transaction: &WriteTransaction, path: &str, id: DirectoryId) -> Result<(), redb::Error> {
    transaction.open_table(DIRECTORIES)?.insert(path, (id.device, id.inode))?;
    Ok(())
}

/// The directory last accepted at `path`.
pub(super) fn directory(database: &Database, path: &str) -> Result<Option<DirectoryId>, redb::Error> {
    match database.begin_read()?.open_table(DIRECTORIES) {
        Ok(table) => Ok(table.get(path)?.map(|entry| {
            let (device, inode) = entry.value();
            DirectoryId { device, inode }
        })),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
