//! Builds a new database, with the intact records of a damaged one if there is one.
//!
//! The damaged file is not opened as a database, which may fail or panic: its bytes are searched for records, each with
//! its own name, sequence and checksum ([`super::record`]). Unused pages hold older records; of one origin the highest
//! sequence is valid, and removed origins have a record too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::kinds::COUNTED_TAG;
use super::record::{MAGIC, Record};
use super::table::{Table, start_sequence};
use super::{StoreError, open_database, open_error, quarantine};
use limpet_model::source::SourceKind;

/// How much of a damaged file is searched. A node's manifests are far smaller.
const MAX_BYTES: u64 = 256 << 20;

/// The records of a file by type, source and name.
type Records<'a> = BTreeMap<(u8, SourceKind, &'a str), (&'static Table, Record<'a>)>;

/// Creates a database at `path` from the records in `aside`. Returns the number of salvaged files and URLs.
pub(super) fn rebuild(aside: &Path, path: &Path) -> Result<usize, StoreError> {
    let bytes = read(aside).unwrap_or_else(|error| {
        tracing::error!(%error, path = %aside.display(), "the damaged database cannot be read");
        Vec::new()
    });
    create_with(path, &newest(&bytes))
}

/// Creates an empty database at `path`.
pub(super) fn create(path: &Path) -> Result<(), StoreError> {
    create_with(path, &Records::new()).map(drop)
}

/// Creates the file at `path` only when it is complete, because one that a crash left unfinished would count as
/// damaged.
fn create_with(path: &Path, records: &Records<'_>) -> Result<usize, StoreError> {
    let failed = |source| StoreError::Create { path: path.to_owned(), source };
    let fresh = with_suffix(path, ".new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let count = fill(&fresh, records)?;
    std::fs::rename(&fresh, path).map_err(failed)?;
    if let Some(directory) = path.parent() {
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    }
    Ok(count)
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes);
    // A card may fail in the middle of the file, and the part before is still worth searching.
    if bytes.is_empty() { read.map(|_| bytes) } else { Ok(bytes) }
}

/// The newest intact record of every name, including removed ones.
fn newest(bytes: &[u8]) -> Records<'_> {
    let mut newest = Records::new();
    let starts = (0..bytes.len().saturating_sub(MAGIC.len())).filter(|at| bytes[*at] == MAGIC[0]);
    for record in starts.filter_map(|at| Record::decode(&bytes[at..])) {
        let Some(table) = Table::for_record(&record) else { continue };
        let known = newest.entry((table.tag, record.source, record.name)).or_insert((table, record));
        if known.1.sequence < record.sequence {
            *known = (table, record);
        }
    }
    newest
}

fn fill(path: &Path, records: &Records<'_>) -> Result<usize, StoreError> {
    let database = open_database(path).map_err(|error| open_error(path, error))?;
    let mut count = 0;
    let write = || {
        let transaction = database.begin_write()?;
        let sequence = records.values().map(|(_, record)| record.sequence).max().unwrap_or(0);
        start_sequence(&transaction, sequence)?;
        for (table, record) in records.values().filter(|(table, record)| record.tag == table.tag) {
            (table.insert)(&transaction, record)?;
            count += usize::from(record.tag == COUNTED_TAG);
        }
        transaction.commit()?;
        Ok(())
    };
    quarantine::guarded(path, write).map_err(|error: redb::Error| StoreError::Transaction {
        operation: "write",
        path: path.to_owned(),
        source: Box::new(error),
    })?;
    Ok(count)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
