//! Checks for `limpet doctor` whether fanotify works, by having it name the process that writes a file.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use super::fanotify::Fanotify;
use crate::directory_id;
use limpet_model::actor::Actor;

const NAME: &str = "trial";

/// Writes a file in `directory` and returns the process that fanotify reports. It may never resolve.
///
/// # Errors
/// The kernel has no fanotify, or refuses it for this directory.
pub async fn fanotify(directory: &Path) -> io::Result<Arc<Actor>> {
    let mut fanotify = Fanotify::new()?;
    fanotify.mark(directory, directory_id(directory)?)?;
    fs::write(directory.join(NAME), "")?;
    loop {
        let drained = fanotify.read_events(&()).await?;
        if let Some(seen) = drained.seen.into_iter().find(|seen| seen.name == NAME) {
            return Ok(seen.actor);
        }
    }
}

/// Whether fanotify can watch `directory`, which is not changed. Needs a tokio runtime.
///
/// # Errors
/// As [`fanotify`].
pub fn can_mark(directory: &Path) -> io::Result<()> {
    Fanotify::new()?.mark(directory, directory_id(directory)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_writer_is_named_and_marking_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        match can_mark(directory.path()) {
            Err(error) => return println!("skipped: fanotify: {error}"),
            Ok(()) => assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0),
        }
        assert_eq!(fanotify(directory.path()).await.unwrap().pid, Some(std::process::id()));
        let error = fanotify(&directory.path().join("none")).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
