//! The embedded database (redb): state that must survive a power cut.
//!
//! It owns `<root>/limpet.db`. It stores the last good manifests of each source and their change history, so that a
//! source that cannot be read after a restart still has its pods. There is one transaction per change, and none if
//! nothing changed, to spare flash. Each type of record has its own table: a new one is one [`Stored`] in
//! `kinds.rs`.
//!
//! A damaged or foreign file is set aside, its intact records are salvaged, and what only it had is written again
//! from what the records' owners hold in memory ([`Store::register`]). This is never fatal, and callers do not
//! notice.
//!
//! redb was chosen because it has one file, no C, checksummed pages and an atomic commit; one process writes it a few
//! times a day. Every record also has its own checksum, because redb verifies its pages only after an unclean
//! shutdown.
//!
//! Calls block (a write waits for the disk), so they must be made from `spawn_blocking`. They have no deadline,
//! because a write that was given up might still be done after its source was told that it was not. A caller that
//! must not wait for a hanging write continues without its answer (`agent/sources/src/persist.rs`).

mod changes;
mod history;
mod kinds;
mod quarantine;
mod record;
mod salvage;
mod seal;
mod table;
mod version;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableDatabase, StorageError};

pub use changes::Changes;
pub use kinds::{GenerationDocument, GenerationManifest, StoredMemory};
use limpet_core::last_good::LastGood;
use limpet_core::source::ManifestChange;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;
use limpet_upgrade::state_version::StateError;
use record::Record;
pub use seal::{KeyError, KeyLocation, Sealer};
use table::Table;
pub use table::{Address, Stored};

/// The page cache in bytes. The database is read once at the start and rarely written.
const PAGE_CACHE_SIZE: usize = 256 << 10;

/// Why the database could not be used. All errors are worth a retry at the next change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Opening or creating the file failed, but not because of its content.
    #[error("cannot open {path}")]
    Open {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    /// A damaged file could not be renamed.
    #[error("cannot set damaged {path} aside")]
    SetAside {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A new database could not be created, in place of a damaged one or as the first.
    #[error("cannot create {path}")]
    Create {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A newer release wrote it.
    #[error(transparent)]
    Version(#[from] StateError),
    /// A Secret is among the changes, but the key to encrypt it is not available.
    #[error("a Secret cannot be saved: the key of secretEncryptionKey is not available")]
    Locked,
    /// Reading or writing failed: disk full, I/O error.
    #[error("cannot {operation} {path}")]
    Transaction {
        /// `read` or `write`.
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
}

impl StoreError {
    /// Whether the file system of the database is read-only.
    pub fn is_read_only(&self) -> bool {
        let cause = match self {
            Self::Open { source, .. } | Self::Transaction { source, .. } => match &**source {
                redb::Error::Io(error) => error,
                _ => return false,
            },
            Self::SetAside { source, .. } | Self::Create { source, .. } => source,
            Self::Locked | Self::Version(_) => return false,
        };
        cause.kind() == std::io::ErrorKind::ReadOnlyFilesystem
    }
}

/// A damaged database that was renamed and replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    pub path: PathBuf,
    /// The number of files and URLs whose last good manifests were salvaged from it.
    pub recovered: usize,
}

/// Holds in memory what was saved for one source.
pub trait SavedCopy: Debug + Send + Sync {
    /// All of it, to save it again. Called with the database locked, so it must neither wait nor use the store.
    fn everything(&self) -> Changes;
}

/// What is stored for one source, of one type.
#[derive(Debug)]
pub struct Loaded<R> {
    /// By name.
    pub records: BTreeMap<Arc<str>, R>,
    /// Whether nothing can be missing: false while a damaged database that was set aside still exists, because that
    /// may have had more records.
    pub complete: bool,
}

/// Checks that a record that can be decoded encodes to the same bytes: for the fuzz target.
pub fn check_record(bytes: &[u8]) {
    // The second time, it has a valid checksum, which random bytes never have.
    for bytes in [bytes, &record::sign(bytes)] {
        let Some(record) = Record::decode(bytes) else { continue };
        assert!(bytes.starts_with(&record.encode()), "a decoded record encodes to other bytes");
        if let Some(table) = Table::for_record(&record).filter(|table| table.tag == record.tag) {
            let again = (table.recode)(record.content);
            assert_eq!(again.as_deref(), Some(record.content), "a decoded content encodes to other bytes");
        }
    }
}

/// The open database. Shared by `Arc`.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    sealer: Sealer,
    /// Whether its callers do not move to the blocking pool.
    inline: bool,
    /// Why its contents are gone after a reboot.
    volatile: Option<Arc<String>>,
    state: Mutex<StoreState>,
}

#[derive(Debug, Default)]
struct StoreState {
    /// `None` after a failed write: redb then rejects all calls, so the file is reopened.
    database: Option<Database>,
    /// Whether a damaged database was replaced, and what is held in memory is not written again yet.
    rewrite: bool,
    held: Vec<(SourceKind, Weak<dyn SavedCopy>)>,
}

impl Store {
    /// Opens or creates the database at `path`, whose directory exists. A file that is not a database, or cannot be
    /// repaired, is renamed to `<path>.damaged-<time>`. Its intact records are salvaged, and [`SetAside`] is
    /// returned.
    ///
    /// # Errors
    ///
    /// I/O errors: not writable, full, broken.
    pub fn open(path: &Path) -> Result<(Self, Option<SetAside>), StoreError> {
        let (database, set_aside) = open_or_rebuild(path)?;
        let state = Mutex::new(StoreState { database: Some(database), ..StoreState::default() });
        Ok((Self { path: path.to_owned(), sealer: Sealer::Off, inline: false, volatile: None, state }, set_aside))
    }

    /// Opens a copy at `copy` of the database at `path`, which cannot be written. A reboot removes the copy. An
    /// existing copy is newer and is used.
    ///
    /// # Errors
    ///
    /// I/O errors of either.
    pub fn open_copy(path: &Path, copy: &Path, why: String) -> Result<(Self, Option<SetAside>), StoreError> {
        let failed = |source| StoreError::Create { path: copy.to_owned(), source };
        if path.exists() && !copy.exists() {
            let unfinished = copy.with_extension("new");
            let mut from = File::open(path).map_err(failed)?;
            let mut to = private_file(&unfinished).map_err(failed)?;
            to.set_len(0).and_then(|()| std::io::copy(&mut from, &mut to)).map_err(failed)?;
            std::fs::rename(&unfinished, copy).map_err(failed)?;
        }
        let (mut store, set_aside) = Self::open(copy)?;
        store.volatile = Some(Arc::new(why));
        Ok((store, set_aside))
    }

    /// Why its contents are gone after a reboot; `None` if they stay.
    pub fn volatile(&self) -> Option<Arc<String>> {
        self.volatile.clone()
    }

    /// Makes sources call it on their own thread from now on, because simulated runs have only one, and their order
    /// must be reproducible.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Whether sources call it on their own thread.
    pub fn is_inline(&self) -> bool {
        self.inline
    }

    /// Keeps Secrets and tokens sealed from now on, including those that are already stored, either open or as
    /// earlier versions sealed them.
    ///
    /// # Errors
    ///
    /// Reading or writing failed.
    pub fn sealed_by(mut self, sealer: Sealer) -> Result<Self, StoreError> {
        self.sealer = sealer;
        if let Sealer::Ready(_) = self.sealer {
            for source in SourceKind::ALL {
                let mut changes = Changes::default();
                for (name, record) in self.stored::<LastGood>(source)? {
                    if let Some(renewed) = self.sealer.renewed(record) {
                        changes.put(name, Some(renewed));
                    }
                }
                for (name, record) in self.stored::<GenerationManifest>(source)? {
                    if let Some(renewed) = self.sealer.renewed(record.0) {
                        changes.put(name, Some(GenerationManifest(renewed)));
                    }
                }
                self.apply(source, &changes)?;
            }
        }
        Ok(self)
    }

    /// Damaged databases that were set aside, newest last. This one may lack records that only they had.
    pub fn damaged(&self) -> Vec<PathBuf> {
        damaged(&self.path)
    }

    /// Asks `held` for what to write again when a damaged database is replaced, until `held` is dropped.
    pub fn register<H: SavedCopy + 'static>(&self, source: SourceKind, held: &Arc<H>) {
        let held: Weak<H> = Arc::downgrade(held);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.retain(|(_, held)| held.strong_count() > 0);
        state.held.push((source, held));
    }

    /// All records of one type of `source`. One that fails its checksum is skipped and logged.
    ///
    /// # Errors
    /// Reading failed.
    pub fn load<R: Stored>(&self, source: SourceKind) -> Result<Loaded<R>, StoreError> {
        let open = |(name, record): (Arc<str>, R)| {
            let opened = record.opened(&self.sealer, table::place::<R>(source, &name));
            (name, opened)
        };
        let records = self.stored(source)?.into_iter().map(open).collect();
        Ok(Loaded { records, complete: self.damaged().is_empty() })
    }

    /// The records as they are written.
    fn stored<R: Stored>(&self, source: SourceKind) -> Result<BTreeMap<Arc<str>, R>, StoreError> {
        self.transact("read", |database| table::all(&database.begin_read()?, source))
    }

    /// One record; one that fails its checksum counts as absent.
    ///
    /// # Errors
    /// Reading failed.
    pub fn get<R: Stored>(&self, source: SourceKind, name: &str) -> Result<Option<R>, StoreError> {
        let record: Option<R> = self.transact("read", |database| table::get(&database.begin_read()?, source, name))?;
        Ok(record.map(|record| record.opened(&self.sealer, table::place::<R>(source, name))))
    }

    /// The last changes of a pod's manifest, oldest first.
    ///
    /// # Errors
    /// Reading failed.
    pub fn history(&self, pod: &PodKey) -> Result<Vec<ManifestChange>, StoreError> {
        self.transact("read", |database| history::changes_of(database, &pod.to_string()))
    }

    /// Writes `changes` of `source` in one transaction, or nothing when all of them are stored already.
    /// Returns whether the disk was written to.
    ///
    /// # Errors
    /// Writing failed and nothing was stored: retry with the next changes. [`StoreError::Locked`]: all but Secrets was.
    pub fn apply(&self, source: SourceKind, changes: &Changes) -> Result<bool, StoreError> {
        let written = self.transact("write", |database| changes.write(database, source, &self.sealer))?;
        let withheld = matches!(self.sealer, Sealer::Locked) && !changes.may_be_written(source, &self.sealer);
        if withheld { Err(StoreError::Locked) } else { Ok(written) }
    }

    /// Simulates a disk that hangs, until the result is dropped.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn hang(&self) -> impl Sized + '_ {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a failed write: the next call reopens the file.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn forget_database(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).database = None;
    }

    /// Runs `work` on the open database, and reopens it after a failure. If the database turns out to be damaged,
    /// `work` is run again on the one that replaces it.
    fn transact<T>(
        &self,
        operation: &'static str,
        work: impl Fn(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.rewrite(&mut state)?;
        let mut done = self.attempt(&mut state, &work)?;
        if matches!(done, Err(redb::Error::Corrupted(_))) {
            self.rewrite(&mut state)?;
            done = self.attempt(&mut state, &work)?;
        }
        done.map_err(|error| StoreError::Transaction { operation, path: self.path.clone(), source: Box::new(error) })
    }

    /// Writes what is held in memory again if a damaged database was replaced. If that fails, the next call does it.
    ///
    /// # Errors
    ///
    /// The database cannot be opened.
    fn rewrite(&self, state: &mut StoreState) -> Result<(), StoreError> {
        state.database = Some(self.open_again(state)?);
        if !state.rewrite {
            return Ok(());
        }
        let owners: Vec<_> = state.held.iter().filter_map(|(source, held)| Some((*source, held.upgrade()?))).collect();
        for (source, held) in owners {
            let changes = held.everything();
            if let Err(error) =
                self.attempt(state, &|database: &Database| changes.write(database, source, &self.sealer))?
            {
                tracing::error!(%source, %error, "saving a record of the damaged database in the new one failed");
                return Ok(());
            }
        }
        state.rewrite = false;
        Ok(())
    }

    /// Runs `work` once. A database that turns out to be damaged is set aside.
    ///
    /// # Errors
    /// The database cannot be opened.
    fn attempt<T>(
        &self,
        state: &mut StoreState,
        work: &impl Fn(&Database) -> Result<T, redb::Error>,
    ) -> Result<Result<T, redb::Error>, StoreError> {
        let database = self.open_again(state)?;
        let done = quarantine::guarded(&self.path, || {
            let done = work(&database);
            state.database = done.is_ok().then_some(database);
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
        Ok(done)
    }

    /// Takes the open database, or opens it again.
    fn open_again(&self, state: &mut StoreState) -> Result<Database, StoreError> {
        if let Some(database) = state.database.take() {
            return Ok(database);
        }
        let (database, set_aside) = open_or_rebuild(&self.path)?;
        if let Some(SetAside { path, recovered }) = set_aside {
            tracing::error!(aside = %path.display(), recovered, "damaged database replaced");
            state.rewrite = true;
        }
        Ok(database)
    }
}

/// Damaged databases that were set aside from `path`, newest last. Reads a directory.
pub fn damaged(path: &Path) -> Vec<PathBuf> {
    quarantine::set_aside_before(path)
}

/// Closing writes too, so it is guarded as well.
impl Drop for Store {
    fn drop(&mut self) {
        let database = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).database.take();
        quarantine::guarded(&self.path, || drop(database));
    }
}

/// Opens the database at `path`. An unusable file is set aside. If there is no file, a new one is created from the
/// intact records of the one that was set aside last.
fn open_or_rebuild(path: &Path) -> Result<(Database, Option<SetAside>), StoreError> {
    if path.exists() {
        version::demand_readable(path)?;
        match open_database(path) {
            Ok(database) => return Ok((version::settled(database, path)?, None)),
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, path = %path.display(), "damaged database");
                quarantine::set_aside(path).map_err(|source| StoreError::SetAside { path: path.to_owned(), source })?;
            }
            Err(error) => return Err(open_error(path, error)),
        }
    }
    let Some(aside) = quarantine::unsalvaged(path) else {
        salvage::create(path)?;
        let database = open_database(path).map_err(|error| open_error(path, error))?;
        return Ok((version::settled(database, path)?, None));
    };
    let recovered = salvage::rebuild(&aside, path)?;
    let database = open_database(path).map_err(|error| open_error(path, error))?;
    let database = version::settled(database, path)?;
    // It is renamed only now, so that the next start salvages it again if the agent crashes before.
    let aside = quarantine::mark_salvaged(path, aside);
    Ok((database, Some(SetAside { path: aside, recovered })))
}

fn open_database(path: &Path) -> Result<Database, DatabaseError> {
    let file = private_file(path).map_err(|error| DatabaseError::Storage(StorageError::Io(error)))?;
    quarantine::guarded(path, || {
        Database::builder().set_cache_size(PAGE_CACHE_SIZE).create_with_backend(FileBackend::new(file)?)
    })
}

/// Opens the file so that only the agent's user can read it, because the database contains Secrets. An earlier
/// version may have created it readable.
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
