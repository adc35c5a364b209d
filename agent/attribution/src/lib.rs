//! Who changed a manifest: fanotify and BPF programs, beside the inotify watch that reports that something changed.
//!
//! Input: the watched directories. Output: the [`actor`](limpet_model::actor::Actor) behind a change, if it is known.
//! No other crate depends on a result: a backend that fails is replaced by the next best, or finally by none.

mod active_backend;
pub mod attributor;
pub mod bpf_feed;
pub mod cgroup_path;
mod fanotify;
pub mod fanotify_probe;
pub mod feed;
pub mod process_actor;

use std::io::{self, ErrorKind};
use std::path::Path;

use limpet_model::directory_id::DirectoryId;

/// The identity of the directory that `path` leads to.
pub fn directory_id(path: &Path) -> io::Result<DirectoryId> {
    DirectoryId::from_metadata(&path.metadata()?).ok_or_else(|| ErrorKind::NotADirectory.into())
}
