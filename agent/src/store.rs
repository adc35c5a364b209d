//! The embedded database (redb): state that must survive a power cut.
//!
//! Owns `<root>/limpet.db`. It stores the last good manifests of each source and their change history, so that a source
//! that cannot be read after a restart still has its pods. One transaction per change, and none when nothing changed,
//! to spare flash. A damaged or foreign file is set aside and its intact records are salvaged; this is never fatal.
//!
//! redb: one file, no C, checksummed pages and an atomic commit; one process writes it a few times a day. Every record
//! has its own checksum too, because redb verifies its pages only after an unclean shutdown.
//!
//! Calls block (a write waits for the disk): call them from `spawn_blocking`.

mod history;
mod quarantine;
mod record;
mod salvage;
mod tables;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redb::{Database, DatabaseError, ReadableDatabase, StorageError};

use limpet_core::last_good::LastGood;
use limpet_core::source::ManifestChange;
use limpet_model::directory_id::DirectoryId;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;
use record::Content;
use tables::{directory, is_accepted, not_stored, open_last_good, put_directory, write_records};

/// The page cache in bytes. The database is read once at the start and rarely written.
const CACHE: usize = 256 << 10;
/// Why the database could not be used. All errors are worth a retry at the next change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Opening or creating the file failed, for another reason than its content.
    #[error("cannot open {path}")]
    Open {
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// A damaged file could not be renamed.
    #[error("cannot set damaged {path} aside")]
    SetAside {
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A damaged database could not be replaced by a new one.
    #[error("cannot replace damaged {path}")]
    Salvage {
        /// The database's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Reading or writing failed: disk full, I/O error.
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

/// A damaged database that was renamed and replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Its new path.
    pub path: PathBuf,
    /// The number of files and URLs whose last good manifests were salvaged from it.
    pub recovered: usize,
}

/// The changes of one transaction. Empty: nothing is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// By origin; `None` removes the origin.
    pub last_good: BTreeMap<Arc<str>, Option<LastGood>>,
    /// The directory accepted at a path.
    pub directory: Option<(Arc<str>, DirectoryId)>,
    /// The changes for the history, oldest first.
    pub history: Vec<Arc<ManifestChange>>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.last_good.is_empty() && self.directory.is_none() && self.history.is_empty()
    }

    /// Adds to the history; drops the oldest changes beyond the limit.
    pub fn remember(&mut self, changes: &[Arc<ManifestChange>]) {
        self.history.extend(changes.iter().filter(|change| change.pod.is_some()).cloned());
        let excess = self.history.len().saturating_sub(history::MOST);
        self.history.drain(..excess);
    }
}

/// Checks that a record that can be decoded encodes to the same bytes: for the fuzz target.
pub(crate) fn check_record(bytes: &[u8]) {
    // The second time with a valid checksum, which random bytes never have.
    for bytes in [bytes, &record::sign(bytes)] {
        if let Some(record) = record::decode(bytes) {
            let (sequence, source, origin) = (record.sequence, record.source, record.origin.as_str());
            let again = match &record.content {
                Content::Removed => record::encode(sequence, source, origin, None),
                Content::LastGood(last_good) => record::encode(sequence, source, origin, Some(last_good)),
                Content::Directory(id) => record::encode_directory(sequence, source, origin, *id),
            };
            assert!(bytes.starts_with(&again), "a decoded record encodes to other bytes");
        }
    }
}

/// The open database. Shared by `Arc`.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// `None` after a failed write: redb rejects all calls after one, so the file is reopened.
    database: Mutex<Option<Database>>,
    /// How often a damaged database was replaced while this store was open.
    replaced: AtomicU64,
}

impl Store {
    /// Opens or creates the database at `path`, whose directory exists. A file that is no database, or cannot be
    /// repaired, is renamed to `<path>.damaged-<time>`; its intact records are salvaged, and [`SetAside`] is returned.
    ///
    /// # Errors
    /// I/O errors: not writable, full, broken.
    pub fn open(path: &Path) -> Result<(Self, Option<SetAside>), StoreError> {
        let (database, set_aside) = open_or_rebuild(path)?;
        let (path, database) = (path.to_owned(), Mutex::new(Some(database)));
        Ok((Self { path, database, replaced: AtomicU64::new(0) }, set_aside))
    }

    /// Damaged databases that were set aside, newest last: this one may lack records that only they had.
    pub fn damaged(&self) -> Vec<PathBuf> {
        damaged(&self.path)
    }

    /// Increases whenever a damaged database was replaced: everything saved before has to be saved again.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// All last good manifests of `source`, by origin. A record that fails its checksum is skipped.
    ///
    /// # Errors
    /// Reading failed.
    pub fn last_good(&self, source: SourceKind) -> Result<BTreeMap<Arc<str>, LastGood>, StoreError> {
        self.transact("read", |database| {
            let mut all = BTreeMap::new();
            let Some(table) = open_last_good(&database.begin_read()?)? else { return Ok(all) };
            for entry in table.range((source.as_str(), "")..)? {
                let (key, value) = entry?;
                let (name, origin) = key.value();
                if name != source.as_str() {
                    break;
                }
                match record::decode(value.value()).map(|record| record.content) {
                    Some(Content::LastGood(last_good)) => drop(all.insert(Arc::from(origin), last_good)),
                    Some(Content::Removed | Content::Directory(_)) => {}
                    None => {
                        tracing::error!(%source, origin, "a last good manifest is damaged in the database, skipped")
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
        self.transact("read", |database| directory(database, path))
    }

    /// The last changes of a pod's manifest, oldest first.
    ///
    /// # Errors
    /// Reading failed.
    pub fn history(&self, pod: &PodKey) -> Result<Vec<ManifestChange>, StoreError> {
        self.transact("read", |database| history::of(database, &pod.to_string()))
    }

    /// Writes `changes` of `source` in one transaction, or nothing when all of them are stored already.
    /// Returns whether the disk was written to.
    ///
    /// # Errors
    /// Writing failed and nothing was stored: retry with the next changes.
    pub fn apply(&self, source: SourceKind, changes: &Changes) -> Result<bool, StoreError> {
        self.transact("write", |database| {
            let last_good = not_stored(database, source, changes)?;
            let history = history::new_changes(database, &changes.history)?;
            if last_good.is_empty() && history.is_empty() && is_accepted(database, changes.directory.as_ref())? {
                return Ok(false);
            }
            let transaction = database.begin_write()?;
            history::write(&transaction, &history)?;
            write_records(&transaction, source, &last_good)?;
            if let Some((path, id)) = &changes.directory {
                put_directory(&transaction, source, path, *id)?;
            }
            transaction.commit()?;
            Ok(true)
        })
    }

    /// Simulates a failed write: the next call reopens the file.
    #[cfg(test)]
    pub(crate) fn forget_database(&self) {
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Runs `work` on the open database; reopens it after a failure.
    fn transact<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => {
                let (database, set_aside) = open_or_rebuild(&self.path)?;
                if let Some(SetAside { path, recovered }) = set_aside {
                    tracing::error!(aside = %path.display(), recovered, "damaged database replaced");
                    self.replaced.fetch_add(1, Ordering::Relaxed);
                }
                database
            }
        };
        let done = quarantine::guarded(&self.path, || {
            let done = work(&database);
            *slot = done.is_ok().then_some(database);
            done
        });
        if matches!(done, Err(redb::Error::Corrupted(_))) {
            match quarantine::set_aside(&self.path) {
                Ok(aside) => tracing::error!(aside = %aside.display(), "damaged database set aside"),
                Err(error) => {
                    tracing::error!(%error, path = %self.path.display(), "cannot set the damaged database aside")
                }
            }
        }
        done.map_err(|error| StoreError::Transaction { operation, path: self.path.clone(), source: Box::new(error) })
    }
}

/// An error with its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Damaged databases that were set aside from `path`, newest last. Reads a directory.
pub fn damaged(path: &Path) -> Vec<PathBuf> {
    quarantine::set_aside_before(path)
}

/// Closing writes too, so it is guarded as well.
impl Drop for Store {
    fn drop(&mut self) {
        let database = self.database.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        quarantine::guarded(&self.path, || drop(database));
    }
}

/// Opens the database at `path`. An unusable file is set aside; if there is no file, a new one is created from the
/// intact records of the one set aside last.
fn open_or_rebuild(path: &Path) -> Result<(Database, Option<SetAside>), StoreError> {
    if path.exists() {
        match open_database(path) {
            Ok(database) => return Ok((database, None)),
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, path = %path.display(), "damaged database");
                quarantine::set_aside(path).map_err(|source| StoreError::SetAside { path: path.to_owned(), source })?;
            }
            Err(error) => return Err(open_error(path, error)),
        }
    }
    let Some(aside) = quarantine::unsalvaged(path) else {
        return Ok((open_database(path).map_err(|error| open_error(path, error))?, None));
    };
    let recovered = salvage::rebuild(&aside, path)?;
    let database = open_database(path).map_err(|error| open_error(path, error))?;
    // Renamed only now: if the agent crashes before, the next start salvages it again.
    let aside = quarantine::mark_salvaged(path, aside);
    Ok((database, Some(SetAside { path: aside, recovered })))
}

fn open_database(path: &Path) -> Result<Database, DatabaseError> {
    let file = private_file(path).map_err(|error| DatabaseError::Storage(StorageError::Io(error)))?;
    quarantine::guarded(path, || Database::builder().set_cache_size(CACHE).create_file(file))
}

/// The database holds Secrets: only the agent's user may read it, even if an earlier version created it readable.
fn private_file(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn open_error(path: &Path, source: DatabaseError) -> StoreError {
    StoreError::Open { path: path.to_owned(), source: Box::new(source.into()) }
}

/// Whether the file's content is damaged, so that a new file would help.
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
