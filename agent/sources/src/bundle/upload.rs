//! Bundles that a client sends to the local socket: their bytes, and no path, so nobody has the agent read a file that he
//! cannot read himself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::Refusal;
use super::writer::Writer;

/// How the files are called, with a number behind it.
const PREFIX: &str = "upload-";
/// How many bundles may be received, or wait for their window, at once: each has its room on the disk.
const MAX_UPLOADS: usize = 4;

/// The bytes of a bundle.
pub type UploadStream = BoxStream<'static, io::Result<Bytes>>;

/// Receives bundles. Clones share the limit.
#[derive(Debug, Clone)]
pub(super) struct Uploads {
    directory: PathBuf,
    limit: u64,
    permits: Arc<Semaphore>,
    last: Arc<AtomicU64>,
}

/// A bundle that was received. It is removed in the end.
#[derive(Debug)]
pub(super) struct Upload {
    path: PathBuf,
    _permit: OwnedSemaphorePermit,
}

impl Upload {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // One that stays is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl Uploads {
    /// Those of at most `limit` bytes, in a directory that need not exist.
    pub(super) fn new(directory: PathBuf, limit: u64) -> Self {
        Self { directory, limit, permits: Arc::new(Semaphore::new(MAX_UPLOADS)), last: Arc::default() }
    }

    /// Receives a bundle that its sender calls `name`. Cancel safe: half a file is removed.
    ///
    /// # Errors
    /// It does not arrive, cannot be written, or too many are there.
    pub(super) async fn receive(&self, mut bytes: UploadStream, name: &Path) -> Result<Upload, Refusal> {
        let received = self.write(&mut bytes, name).await;
        if received.is_err() {
            // A client that is still sending would not see the answer.
            while let Some(Ok(_)) = bytes.next().await {}
        }
        received
    }

    async fn write(&self, bytes: &mut UploadStream, name: &Path) -> Result<Upload, Refusal> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Refusal::Busy(MAX_UPLOADS))?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let upload = Upload { path: self.directory.join(format!("{PREFIX}{number}")), _permit: permit };
        let failed = |source| Refusal::Copy { path: name.to_owned(), source };
        let mut writer = Writer::open(upload.path.clone(), 0, self.limit).await.map_err(failed)?;
        while let Some(piece) = bytes.next().await {
            writer = writer.write(&piece.map_err(failed)?).await.map_err(failed)?;
        }
        writer.finish().await.map_err(failed)?;
        Ok(upload)
    }
}

/// Removes what a power cut has left in `directory`. Blocks.
pub(super) fn remove_left(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn sent(pieces: Vec<io::Result<Bytes>>) -> UploadStream {
        stream::iter(pieces).boxed()
    }

    #[tokio::test]
    async fn a_bundle_is_whole_or_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("bundle");
        let left = || fs::read_dir(&directory).map_or(0, Iterator::count);
        let (uploads, name) = (Uploads::new(directory.clone(), 10), Path::new("a.limpet"));
        let pieces = || vec![Ok(Bytes::from_static(b"12345")), Ok(Bytes::from_static(b"678"))];
        let upload = uploads.receive(sent(pieces()), name).await.unwrap();
        assert_eq!(fs::read(upload.path()).unwrap(), b"12345678");
        drop(upload);
        let broken = vec![Ok(Bytes::from_static(b"1")), Err(io::Error::other("the client has left"))];
        let error = uploads.receive(sent(broken), name).await.unwrap_err().to_string();
        assert!(error.contains("a.limpet") && error.contains("has left"), "{error}");
        let large = vec![Ok(Bytes::from_static(b"12345678901"))];
        assert!(uploads.receive(sent(large), name).await.unwrap_err().to_string().contains("bundle.maxSize"));
        assert_eq!(left(), 0);
        let mut held = Vec::new();
        for _ in 0..MAX_UPLOADS {
            held.push(uploads.receive(sent(pieces()), name).await.unwrap());
        }
        let error = uploads.receive(sent(pieces()), name).await.unwrap_err();
        assert!(matches!(error, Refusal::Busy(MAX_UPLOADS)) && error.is_transient(), "{error}");
        held.into_iter().for_each(std::mem::forget);
        assert_eq!(left(), MAX_UPLOADS);
        remove_left(&directory).unwrap();
        assert_eq!(left(), 0);
        remove_left(&dir.path().join("none")).unwrap();
    }
}
