//! What a scan of manifest files finds, and what is known about the files for the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::stamp::Stamp;
use limpet_model::directory_id::DirectoryId;
use limpet_model::manifest::Manifest;

/// The state of a scanned file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownFile {
    /// `None` if it must be read again whatever its stamp.
    pub(super) stamp: Option<Stamp>,
    /// Whether it is a symlink, whose targets are watched.
    pub(super) link: bool,
}

/// Files by name, as of their last scan.
pub(super) type KnownFiles = BTreeMap<Arc<str>, KnownFile>;

/// How a file differs from its last scan.
#[derive(Debug)]
pub(super) enum Finding {
    /// It was read, with or without faults.
    Read(Manifest),
    Absent,
    /// It is being written in place, so its previous content stays in effect.
    BeingWritten,
}

/// The result of one scan.
#[derive(Debug)]
pub(super) struct Scan {
    /// The state of all files.
    pub(super) known: KnownFiles,
    pub(super) findings: Vec<(Arc<str>, Finding)>,
    /// For a scan of everything: the directory's listing, or why it cannot be read.
    pub(super) listing: Option<Result<Listing, String>>,
}

impl Scan {
    /// A scan that has found nothing yet.
    pub(super) fn new(known: KnownFiles) -> Self {
        Self { known, findings: Vec::new(), listing: None }
    }
}

/// The listing of a directory.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) id: DirectoryId,
    /// The files in it that are read.
    pub(super) names: BTreeSet<Arc<str>>,
    /// Names that are not UTF-8 and were not reported before. Their files are not read.
    pub(super) skipped: Vec<String>,
    /// How many manifests are beyond the limit of one directory.
    pub(super) excess: usize,
    /// The file system of the directory, or of a symlink's target, that hides changes, if any.
    pub(super) unwatched_fs: Option<&'static str>,
}
