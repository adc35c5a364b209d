//! Where a bundle is copied to before it is verified, so that what is verified is what is used: the medium it came from may
//! be changed or removed meanwhile.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use limpet_bundle::BundleError;
use limpet_host::blocking::{self, DEADLINE, Progress};
use rustix::fs::OFlags;

use super::refusal::Refusal;
use super::upload;

const COPY: &str = "incoming.limpet";
/// How many bytes are copied at once, between two reports of progress.
const PIECE: usize = 256 << 10;

/// The directory of copies, which only root can read: a bundle may contain Secrets.
#[derive(Debug)]
pub(super) struct Staging {
    directory: PathBuf,
}

/// A copy, which is removed in the end.
#[derive(Debug)]
pub(super) struct Staged(PathBuf);

impl Staged {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // One that stays is replaced by the next.
        let _ = fs::remove_file(&self.0);
    }
}

impl Staging {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Removes what a power cut has left.
    pub(super) async fn clear(&self) {
        let copy = self.directory.join(COPY);
        let directory = self.directory.clone();
        let removed = blocking::run(copy.clone(), DEADLINE, move |_| {
            upload::remove_left(&directory)?;
            fs::remove_file(copy)
        })
        .await;
        if let Err(error) = removed.flatten().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }) {
            tracing::warn!(%error, "the copy of an earlier bundle cannot be removed");
        }
    }

    /// Copies a file of at most `limit` bytes.
    ///
    /// # Errors
    /// It cannot be read or written, or is too large.
    pub(super) async fn copy(&self, path: &Path, limit: u64) -> Result<Staged, Refusal> {
        let (from, directory) = (path.to_owned(), self.directory.clone());
        let copied =
            blocking::run(path.to_owned(), DEADLINE, move |progress| copy(&from, &directory, limit, progress)).await;
        copied.unwrap_or_else(|source| Err(Refusal::Copy { path: path.to_owned(), source }))
    }
}

fn copy(from: &Path, directory: &Path, limit: u64, progress: &Progress) -> Result<Staged, Refusal> {
    let failed = |source| Refusal::Copy { path: from.to_owned(), source };
    // A FIFO without a writer must not block.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut source = OpenOptions::new().read(true).custom_flags(nonblocking).open(from).map_err(failed)?;
    let metadata = source.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    let too_large = |size| BundleError::TooLarge { path: from.to_owned(), size, limit };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()).into());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let to = directory.join(COPY);
    let _ = fs::remove_file(&to);
    let staged = Staged(to.clone());
    // What was downloaded here is nobody else's.
    if from.parent() == Some(directory) && fs::hard_link(from, &to).is_ok() {
        return Ok(staged);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&to).map_err(failed)?;
    let (mut piece, mut size) = (vec![0; PIECE], 0);
    loop {
        progress.at(from);
        let length = source.read(&mut piece).map_err(failed)?;
        let Some(read @ [_, ..]) = piece.get(..length) else { return Ok(staged) };
        size += length as u64;
        if size > limit {
            return Err(too_large(size).into());
        }
        progress.at(&to);
        file.write_all(read).map_err(failed)?;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_file_is_refused_and_blocks_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("a.limpet");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let refused = Staging::new(directory.path().join("copies")).copy(&fifo, 1 << 20).await.unwrap_err();
        assert!(
            matches!(&refused, Refusal::Copy { source, .. } if source.to_string() == "it is not a file"),
            "{refused}"
        );
    }
}
