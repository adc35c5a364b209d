//! The identity of directories, independent of their paths.

use std::io::{self, ErrorKind};
use std::path::Path;

use limpet_model::directory_id::DirectoryId;

/// The identity of the directory `path` resolves to.
///
/// # Errors
/// The path does not resolve to a directory, or may not be searched.
pub fn directory_id(path: &Path) -> io::Result<DirectoryId> {
    DirectoryId::from_metadata(&path.metadata()?).ok_or_else(|| ErrorKind::NotADirectory.into())
}
