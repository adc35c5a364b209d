//! Typed tables: one per type of record, each record with its own checksum ([`super::record`]). Reads and writes within
//! one transaction.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, TableError, Value, WriteTransaction};

use super::record::Record;
use super::seal::{Place, Sealer};
use limpet_model::source::SourceKind;

/// `sequence` -> the sequence of the newest record.
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const SEQUENCE: &str = "sequence";
/// How many records of removed names are stored per table and source. Only a salvage needs them, so that it does not
/// bring back older records.
pub(super) const MAX_REMOVED: usize = 64;

/// A type of record: its table, and how a record is encoded. All of it is on disk and never changes.
pub trait Stored: Debug + Clone + Send + Sync + Sized + 'static {
    /// What the table's keys consist of.
    type Key: Address;
    const TABLE: &'static str;
    /// Marks its records.
    const TAG: u8;
    /// Marks the records of removed names.
    const REMOVED: u8;

    /// Appends the record's content.
    fn encode(&self, content: &mut Vec<u8>);

    /// Decodes what [`Stored::encode`] wrote; `None` for anything else.
    fn decode(content: &[u8]) -> Option<Self>;

    /// Whether `other` need not be written if this one is stored.
    fn same(&self, other: &Self) -> bool;

    /// The record as it is written; `None` if it must not be written now.
    fn sealed(&self, _: &Sealer, _: Place<'_>) -> Option<Cow<'_, Self>> {
        Some(Cow::Borrowed(self))
    }

    /// The record as it was before [`Stored::sealed`].
    fn opened(self, _: &Sealer, _: Place<'_>) -> Self {
        self
    }
}

/// The key of a record.
pub trait Address: Key + 'static {
    /// The key of the record `name` of `source`.
    fn build(source: SourceKind, name: &str) -> Self::SelfType<'_>;

    /// The record's name; `None` if the key is of another source than `source`.
    fn name<'a>(key: &Self::SelfType<'a>, source: SourceKind) -> Option<&'a str>;
}

/// Keys of source and name, which every new table uses.
impl Address for (&'static str, &'static str) {
    fn build(source: SourceKind, name: &str) -> <Self as Value>::SelfType<'_> {
        (source.as_str(), name)
    }

    fn name<'a>(key: &<Self as Value>::SelfType<'a>, source: SourceKind) -> Option<&'a str> {
        (key.0 == source.as_str()).then_some(key.1)
    }
}

/// Keys of a name alone, whatever the source.
impl Address for &'static str {
    fn build(_: SourceKind, name: &str) -> <Self as Value>::SelfType<'_> {
        name
    }

    fn name<'a>(key: &<Self as Value>::SelfType<'a>, _: SourceKind) -> Option<&'a str> {
        Some(key)
    }
}

/// What is stored under a name.
#[derive(Debug)]
enum Found<R> {
    Nothing,
    /// The name was removed by the transaction of that sequence.
    Removed(u64),
    Record(R),
    Damaged,
}

impl<R: Stored> Found<R> {
    fn decode(bytes: &[u8]) -> Self {
        match Record::decode(bytes) {
            Some(record) if record.tag == R::TAG => R::decode(record.content).map_or(Self::Damaged, Self::Record),
            Some(record) if record.tag == R::REMOVED && record.content.is_empty() => Self::Removed(record.sequence),
            _ => Self::Damaged,
        }
    }
}

/// The place of the record `name` of `source` in the table `R`.
pub(super) fn place<R: Stored>(source: SourceKind, name: &str) -> Place<'_> {
    Place { table: R::TABLE, source, name }
}

fn definition<R: Stored>() -> TableDefinition<'static, R::Key, &'static [u8]> {
    TableDefinition::new(R::TABLE)
}

fn find<R: Stored>(transaction: &ReadTransaction, source: SourceKind, name: &str) -> Result<Found<R>, redb::Error> {
    let table = match transaction.open_table(definition::<R>()) {
        Ok(table) => table,
        // Nothing of that type was ever written.
        Err(TableError::TableDoesNotExist(_)) => return Ok(Found::Nothing),
        Err(error) => return Err(error.into()),
    };
    Ok(table.get(R::Key::build(source, name))?.map_or(Found::Nothing, |entry| Found::decode(entry.value())))
}

/// The record `name` of `source`. One that fails its checksum counts as absent.
pub(super) fn get<R: Stored>(
    transaction: &ReadTransaction,
    source: SourceKind,
    name: &str,
) -> Result<Option<R>, redb::Error> {
    Ok(match find(transaction, source, name)? {
        Found::Record(record) => Some(record),
        Found::Nothing | Found::Removed(_) | Found::Damaged => None,
    })
}

/// All records of `source`, by name. One that fails its checksum is skipped and logged.
pub(super) fn all<R: Stored>(
    transaction: &ReadTransaction,
    source: SourceKind,
) -> Result<BTreeMap<Arc<str>, R>, redb::Error> {
    let mut all = BTreeMap::new();
    let table = match transaction.open_table(definition::<R>()) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(all),
        Err(error) => return Err(error.into()),
    };
    for entry in table.range(R::Key::build(source, "")..)? {
        let (key, value) = entry?;
        let key = key.value();
        let Some(name) = R::Key::name(&key, source) else { break };
        match Found::<R>::decode(value.value()) {
            Found::Record(record) => drop(all.insert(Arc::from(name), record)),
            Found::Removed(_) | Found::Nothing => {}
            Found::Damaged => {
                tracing::error!(%source, name, table = R::TABLE, "a record is damaged in the database, skipped");
            }
        }
    }
    Ok(all)
}

/// The next sequence, for all records of one transaction.
pub(super) fn next_sequence(transaction: &WriteTransaction) -> Result<u64, redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let sequence = meta.get(SEQUENCE)?.map_or(0, |entry| entry.value()).saturating_add(1);
    meta.insert(SEQUENCE, sequence)?;
    Ok(sequence)
}

/// Sets the sequence of a new database.
pub(super) fn start_sequence(transaction: &WriteTransaction, sequence: u64) -> Result<(), redb::Error> {
    transaction.open_table(META)?.insert(SEQUENCE, sequence)?;
    Ok(())
}

/// A record to write, whatever its type.
pub(super) trait Write: Debug + Send + Sync {
    /// Whether it may be written now. A Secret may not without the configured key.
    fn may_be_written(&self, source: SourceKind, name: &str, sealer: &Sealer) -> bool;

    /// Whether it may be written, and is not stored yet.
    fn is_new(
        &self,
        transaction: &ReadTransaction,
        source: SourceKind,
        name: &str,
        sealer: &Sealer,
    ) -> Result<bool, redb::Error>;

    /// Writes it with that sequence.
    fn write(
        &self,
        transaction: &WriteTransaction,
        sequence: u64,
        source: SourceKind,
        name: &str,
        sealer: &Sealer,
    ) -> Result<(), redb::Error>;

    /// The function that drops the oldest records of removed names beyond the limit, if this is one.
    fn limit_removed(&self) -> Option<LimitRemoved>;
}

/// Drops the oldest records of removed names of a source, in one table.
pub(super) type LimitRemoved = fn(&WriteTransaction, SourceKind) -> Result<(), redb::Error>;

/// A record to write; `None` to remove it.
#[derive(Debug)]
pub(super) struct Put<R>(pub(super) Option<R>);

impl<R: Stored> Write for Put<R> {
    fn may_be_written(&self, source: SourceKind, name: &str, sealer: &Sealer) -> bool {
        self.0.as_ref().is_none_or(|record| record.sealed(sealer, place::<R>(source, name)).is_some())
    }

    fn is_new(
        &self,
        transaction: &ReadTransaction,
        source: SourceKind,
        name: &str,
        sealer: &Sealer,
    ) -> Result<bool, redb::Error> {
        let wanted = match &self.0 {
            Some(record) => match record.sealed(sealer, place::<R>(source, name)) {
                Some(sealed) => Some(sealed),
                None => return Ok(false),
            },
            None => None,
        };
        Ok(match (find::<R>(transaction, source, name)?, wanted) {
            (Found::Nothing | Found::Removed(_), None) => false,
            (Found::Record(stored), Some(wanted)) => !stored.same(&wanted),
            _ => true,
        })
    }

    fn write(
        &self,
        transaction: &WriteTransaction,
        sequence: u64,
        source: SourceKind,
        name: &str,
        sealer: &Sealer,
    ) -> Result<(), redb::Error> {
        let mut content = Vec::new();
        let tag = match &self.0 {
            Some(record) => {
                let Some(sealed) = record.sealed(sealer, place::<R>(source, name)) else { return Ok(()) };
                sealed.encode(&mut content);
                R::TAG
            }
            // A removed name leaves a record, see [`super::salvage`].
            None => R::REMOVED,
        };
        insert::<R>(transaction, &Record { sequence, source, name, tag, content: &content })
    }

    fn limit_removed(&self) -> Option<LimitRemoved> {
        self.0.is_none().then_some(limit_removed::<R>)
    }
}

fn insert<R: Stored>(transaction: &WriteTransaction, record: &Record<'_>) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(definition::<R>())?;
    table.insert(R::Key::build(record.source, record.name), record.encode().as_slice())?;
    Ok(())
}

/// Drops the oldest records of removed names beyond the limit.
fn limit_removed<R: Stored>(transaction: &WriteTransaction, source: SourceKind) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(definition::<R>())?;
    let mut removed = Vec::new();
    for entry in table.range(R::Key::build(source, "")..)? {
        let (key, value) = entry?;
        let key = key.value();
        let Some(name) = R::Key::name(&key, source) else { break };
        if let Found::<R>::Removed(sequence) = Found::decode(value.value()) {
            removed.push((sequence, name.to_owned()));
        }
    }
    removed.sort_unstable();
    for (_, name) in removed.iter().take(removed.len().saturating_sub(MAX_REMOVED)) {
        table.remove(R::Key::build(source, name))?;
    }
    Ok(())
}

/// A table, for code that works on records of any type: the salvage and the fuzz target.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) tag: u8,
    pub(super) removed: u8,
    /// Decodes a content and encodes it again; `None` if it cannot be decoded.
    pub(super) recode: fn(&[u8]) -> Option<Vec<u8>>,
    /// Writes a record as it is.
    pub(super) insert: fn(&WriteTransaction, &Record<'_>) -> Result<(), redb::Error>,
}

impl Table {
    pub(super) const fn for_records<R: Stored>() -> Self {
        Self { tag: R::TAG, removed: R::REMOVED, recode: recode::<R>, insert: insert::<R> }
    }
}

fn recode<R: Stored>(content: &[u8]) -> Option<Vec<u8>> {
    let mut again = Vec::new();
    R::decode(content)?.encode(&mut again);
    Some(again)
}
