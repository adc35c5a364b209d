//! Directories, whatever their paths.

use std::io::{self, ErrorKind};
use std::path::Path;

use limpet_model::directory_id::DirectoryId;

/// The identity of the directory `path` leads to.
///
/// # Errors
/// The path does not lead to a directory, or may not be searched.
pub fn directory_id(path: &Path) -> io::Result<DirectoryId> {
    DirectoryId::from_metadata(&path.metadata()?).ok_or_else(|| ErrorKind::NotADirectory.into())
}
