//! Whether fanotify works here, by having it name who writes a file: for `limpet doctor`.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fanotify::Fanotify;
use crate::directory_id;
use limpet_model::actor::Actor;

/// The file that is written.
const NAME: &str = "trial";

/// Has this process write a file in `directory`, and fanotify name who did it. It may never answer.
///
/// # Errors
/// The kernel gives no fanotify, or not for this directory.
pub async fn fanotify(directory: &Path) -> io::Result<Arc<Actor>> {
    let mut fanotify = Fanotify::new()?;
    fanotify.mark(directory, directory_id(directory)?)?;
    fs::write(directory.join(NAME), "")?;
    loop {
        let drained = fanotify.look(&()).await?;
        if let Some(seen) = drained.seen.into_iter().find(|seen| seen.name == NAME) {
            return Ok(seen.actor);
        }
    }
}

/// Whether fanotify can look at `directory`, which is left as it is. To be called where a runtime is.
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
    async fn who_writes_is_named_and_nothing_is_left_of_a_look() {
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
