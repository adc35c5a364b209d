//! The embedded database: what must survive a power cut.
//!
//! Owns `<root>/limpet.db`. In: the manifests a source accepted, canonical. Out: the same after a restart, for a
//! manifest that has become unreadable in between. One transaction per change of mind, none when nothing changed,
//! so flash sleeps in the steady state. A damaged or foreign file is set aside, never fatal: the manifests
//! themselves are the truth, and this is only what they were when they were last good.
//!
//! Calls block (a write waits for the disk): call them from `spawn_blocking`.

mod quarantine;
mod record;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use redb::{Database, DatabaseError, ReadableDatabase, StorageError, TableDefinition, TableError};

use crate::source::SourceKind;
use crate::watch::DirectoryId;

/// (source, origin) -> manifests, see [`record`].
const LAST_GOOD: TableDefinition<'static, (&str, &str), &[u8]> = TableDefinition::new("last-good");
/// Path -> (device, inode) of the directory last accepted there.
const DIRECTORIES: TableDefinition<'static, &str, (u64, u64)> = TableDefinition::new("directories");
/// Pages kept in memory. The database is read once at the start and written rarely.
const CACHE: usize = 256 << 10;

/// Manifests of one file or URL, canonical JSON, in order.
pub type Manifests = Vec<Arc<[u8]>>;

/// Why the database could not be used. All are worth another try at the next change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Opening or creating the file failed, not for what is in it.
    #[error("cannot open {path}")]
    Open {
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// A damaged file could not be renamed out of the way.
    #[error("cannot set damaged {path} aside")]
    SetAside {
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Reading or writing failed: disk full, input or output error.
    #[error("cannot {operation} {path}")]
    Transaction {
        /// `read` or `write`.
        operation: &'static str,
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<redb::Error>,
    },
}

/// A database that was no database of this program's and lies beside the new one now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it lies now.
    pub path: PathBuf,
    /// What was wrong with it.
    pub reason: String,
}

/// What changes in one transaction. Empty: nothing is asked of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// By origin; `None` forgets the origin.
    pub last_good: BTreeMap<Arc<str>, Option<Manifests>>,
    /// The directory accepted at a path.
    pub directory: Option<(Arc<str>, DirectoryId)>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.last_good.is_empty() && self.directory.is_none()
    }
}

/// Checks that a record, if it can be read, is the one that would be written: for the fuzz target.
pub(crate) fn check_record(bytes: &[u8]) {
    if let Some(manifests) = record::decode(bytes) {
        assert_eq!(record::encode(&manifests), bytes, "a record is read otherwise than it was written");
    }
    // Behind the checksum, where random bytes never come.
    let signed = record::sign(bytes);
    if let Some(manifests) = record::decode(&signed) {
        assert_eq!(record::encode(&manifests), signed);
    }
}

/// The open database. Shared by `Arc`.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// `None` after a failed write: redb refuses everything after one, so the file is opened anew.
    database: Mutex<Option<Database>>,
}

impl Store {
    /// Opens or creates the database at `path`, whose directory exists. What is no database, or one that cannot be
    /// repaired, is renamed to `<path>.damaged-<n>` and told.
    ///
    /// # Errors
    /// The disk's own: not writable, full, broken.
    pub fn open(path: &Path) -> Result<(Self, Option<SetAside>), StoreError> {
        let (database, set_aside) = match open_database(path) {
            Ok(database) => (database, None),
            Err(error) if is_damage(&error) => {
                let aside = quarantine::set_aside(path)
                    .map_err(|source| StoreError::SetAside { path: path.to_owned(), source })?;
                let database = open_database(path).map_err(|source| open_error(path, source))?;
                (database, Some(SetAside { path: aside, reason: error.to_string() }))
            }
            Err(source) => return Err(open_error(path, source)),
        };
        Ok((Self { path: path.to_owned(), database: Mutex::new(Some(database)) }, set_aside))
    }

    /// All last good manifests of `source`, by origin. A record that fails its checksum is left out.
    ///
    /// # Errors
    /// Reading failed.
    pub fn last_good(&self, source: SourceKind) -> Result<BTreeMap<Arc<str>, Manifests>, StoreError> {
        self.transact("read", |database| {
            let mut all = BTreeMap::new();
            let transaction = database.begin_read()?;
            let table = match transaction.open_table(LAST_GOOD) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(all),
                Err(error) => return Err(error.into()),
            };
            for entry in table.range((source.as_str(), "")..)? {
                let (key, value) = entry?;
                let (name, origin) = key.value();
                if name != source.as_str() {
                    break;
                }
                match record::decode(value.value()) {
                    Some(manifests) => drop(all.insert(Arc::from(origin), manifests)),
                    None => {
                        tracing::warn!(%source, origin, "a last good manifest is damaged in the database, left out")
                    }
                }
            }
            Ok(all)
        })
    }

    /// The directory last accepted at `path`.
    ///
    /// # Errors
    /// Reading failed.
    pub fn directory(&self, path: &str) -> Result<Option<DirectoryId>, StoreError> {
        self.transact("read", |database| match database.begin_read()?.open_table(DIRECTORIES) {
            Ok(table) => Ok(table.get(path)?.map(|entry| {
                let (device, inode) = entry.value();
                DirectoryId { device, inode }
            })),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Writes `changes` of `source` in one transaction, or nothing when all is kept already.
    /// Returns whether the disk was written to.
    ///
    /// # Errors
    /// Writing failed and nothing of it is kept: keep the changes and come back with the next ones.
    pub fn apply(&self, source: SourceKind, changes: &Changes) -> Result<bool, StoreError> {
        let records: Vec<(&str, Option<Vec<u8>>)> = changes
            .last_good
            .iter()
            .map(|(origin, manifests)| (&**origin, manifests.as_deref().map(record::encode)))
            .collect();
        self.transact("write", |database| {
            if is_kept(database, source, &records, changes.directory.as_ref())? {
                return Ok(false);
            }
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(LAST_GOOD)?;
                for (origin, record) in &records {
                    match record {
                        Some(record) => drop(table.insert((source.as_str(), *origin), record.as_slice())?),
                        None => drop(table.remove((source.as_str(), *origin))?),
                    }
                }
                let mut table = transaction.open_table(DIRECTORIES)?;
                if let Some((path, id)) = &changes.directory {
                    table.insert(&**path, (id.device, id.inode))?;
                }
            }
            transaction.commit()?;
            Ok(true)
        })
    }

    /// Runs `work` on the open database, opening it again after a failure.
    fn transact<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => open_database(&self.path).map_err(|source| open_error(&self.path, source))?,
        };
        let done = quarantine::guarded(&self.path, || {
            let done = work(&database);
            *slot = done.is_ok().then_some(database);
            done
        });
        if matches!(done, Err(redb::Error::Corrupted(_))) {
            match quarantine::set_aside(&self.path) {
                Ok(aside) => tracing::error!(aside = %aside.display(), "damaged database set aside"),
                Err(error) => tracing::error!(%error, path = %self.path.display(), "damaged database stays"),
            }
        }
        done.map_err(|error| StoreError::Transaction { operation, path: self.path.clone(), source: Box::new(error) })
    }
}

/// Closing writes too, so it is guarded as the rest.
impl Drop for Store {
    fn drop(&mut self) {
        let database = self.database.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        quarantine::guarded(&self.path, || drop(database));
    }
}

fn is_kept(
    database: &Database,
    source: SourceKind,
    records: &[(&str, Option<Vec<u8>>)],
    directory: Option<&(Arc<str>, DirectoryId)>,
) -> Result<bool, redb::Error> {
    let transaction = database.begin_read()?;
    let last_good = match transaction.open_table(LAST_GOOD) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => {
            return Ok(directory.is_none() && records.iter().all(|(_, record)| record.is_none()));
        }
        Err(error) => return Err(error.into()),
    };
    for (origin, record) in records {
        let kept = last_good.get((source.as_str(), *origin))?;
        if kept.as_ref().map(|entry| entry.value()) != record.as_deref() {
            return Ok(false);
        }
    }
    let Some((path, id)) = directory else { return Ok(true) };
    let kept = transaction.open_table(DIRECTORIES)?.get(&**path)?;
    Ok(kept.is_some_and(|entry| entry.value() == (id.device, id.inode)))
}

fn open_database(path: &Path) -> Result<Database, DatabaseError> {
    quarantine::guarded(path, || Database::builder().set_cache_size(CACHE).create(path))
}

fn open_error(path: &Path, source: DatabaseError) -> StoreError {
    StoreError::Open { path: path.to_owned(), source: Box::new(source.into()) }
}

/// Whether the fault lies in the file's content, so that a new file would do.
fn is_damage(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::UpgradeRequired(_) | DatabaseError::RepairAborted => true,
        DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
