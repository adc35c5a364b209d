//! The version of the database ([`limpet_upgrade::state_version`]), so that a file that was moved or restored alone is not
//! taken for what it is not.

use std::path::Path;

use limpet_upgrade::state_version::StateVersion;
use redb::{Database, ReadTransaction, ReadableDatabase, TableError, WriteTransaction};

use super::table::META;
use super::{PAGE_CACHE_SIZE, StoreError, quarantine};

const VERSION: &str = "version";
const READABLE_FROM: &str = "readable-from";

/// Refuses a database of a newer release before it is changed. A database that was not closed properly can only be read
/// after a repair, so [`settled`] refuses it then.
pub(super) fn demand_readable(path: &Path) -> Result<(), StoreError> {
    let version = quarantine::guarded(path, || {
        let database = redb::Builder::new().set_cache_size(PAGE_CACHE_SIZE).open_read_only(path).ok()?;
        recorded(&database.begin_read().ok()?).ok()?
    });
    version.map_or(Ok(()), |version| version.demand_readable(path).map(drop).map_err(StoreError::from))
}

/// The database with its version written, if it had an older one or none.
pub(super) fn settled(database: Database, path: &Path) -> Result<Database, StoreError> {
    let failed = |source: redb::Error| StoreError::Transaction {
        operation: "write",
        path: path.to_owned(),
        source: Box::new(source),
    };
    let version = quarantine::guarded(path, || recorded(&database.begin_read()?)).map_err(failed)?;
    let version = version.map(|version| version.demand_readable(path)).transpose()?;
    if let Some(version) = StateVersion::successor(version.as_ref()) {
        quarantine::guarded(path, || {
            let transaction = database.begin_write()?;
            record(&transaction, &version)?;
            transaction.commit()?;
            Ok(())
        })
        .map_err(failed)?;
    }
    Ok(database)
}

fn recorded(transaction: &ReadTransaction) -> Result<Option<StateVersion>, redb::Error> {
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let number = |key| Ok::<_, redb::Error>(meta.get(key)?.and_then(|entry| u32::try_from(entry.value()).ok()));
    let (version, readable_from) = (number(VERSION)?, number(READABLE_FROM)?);
    let numbers = version.zip(readable_from);
    Ok(numbers.map(|(version, readable_from)| StateVersion { version, readable_from, written_by: String::new() }))
}

fn record(transaction: &WriteTransaction, version: &StateVersion) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(VERSION, u64::from(version.version))?;
    meta.insert(READABLE_FROM, u64::from(version.readable_from))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::super::{Store, open_database};
    use super::*;

    fn write(path: &Path, version: u32, readable_from: u32) {
        let database = open_database(path).unwrap();
        let transaction = database.begin_write().unwrap();
        record(&transaction, &StateVersion { version, readable_from, written_by: String::new() }).unwrap();
        transaction.commit().unwrap();
    }

    #[test]
    fn a_database_of_a_newer_release_is_read_or_refused_and_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("limpet.db");
        let seen = || recorded(&open_database(&path).unwrap().begin_read().unwrap()).unwrap().unwrap();
        drop(Store::open(&path).unwrap());
        let current = StateVersion { written_by: String::new(), ..StateVersion::current() };
        assert_eq!(seen(), current);
        write(&path, current.version + 1, current.version);
        drop(Store::open(&path).unwrap());
        assert_eq!(seen().version, current.version + 1, "the higher version stays");
        write(&path, current.version + 1, current.version + 1);
        let bytes = fs::read(&path).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("has version 2"), "{error}");
        assert!(error.contains("Install a newer limpet"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "changed");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing is set aside");
    }
}
