//! Writing the tar of a bundle.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use crate::error::BundleError;

/// The bytes of a tar with nothing but plain files, the same for the same content.
pub(crate) struct TarWriter<'a> {
    pub(crate) file: BufWriter<File>,
    path: &'a Path,
}

impl<'a> TarWriter<'a> {
    /// Writes from the place at which `file` stands. Errors call it `path`.
    pub(crate) fn new(file: File, path: &'a Path) -> Self {
        Self { file: BufWriter::with_capacity(256 << 10, file), path }
    }

    /// A file with that content.
    pub(crate) fn entry(&mut self, name: &str, content: &[u8]) -> Result<(), BundleError> {
        self.header(name, content.len() as u64)?;
        self.file.write_all(content).map_err(BundleError::io("write", self.path))?;
        self.pad(content.len() as u64)
    }

    /// The header of a file, whose content follows.
    pub(crate) fn header(&mut self, name: &str, size: u64) -> Result<(), BundleError> {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).map_err(BundleError::io("write", self.path))?;
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        self.file.write_all(header.as_bytes()).map_err(BundleError::io("write", self.path))
    }

    /// Fills up the last block of a content.
    pub(crate) fn pad(&mut self, size: u64) -> Result<(), BundleError> {
        let rest = usize::try_from(size.next_multiple_of(512) - size).unwrap_or(0);
        self.file.write_all(&[0; 512][..rest]).map_err(BundleError::io("write", self.path))
    }

    /// The two empty blocks at the end.
    pub(crate) fn finish(mut self) -> Result<File, BundleError> {
        let failed = |source| BundleError::io("write", self.path)(source);
        self.file.write_all(&[0; 1024]).map_err(failed)?;
        self.file.into_inner().map_err(|error| failed(error.into_error()))
    }
}
