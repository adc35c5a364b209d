//! The file of a bundle that is downloaded: it grows across breaks of the connection and starts of the agent, and what it is
//! of is noted beside it before its first byte.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use limpet_host::blocking::{self, DEADLINE};
use serde::{Deserialize, Serialize};

use super::super::writer::Writer;

/// The limit of the note.
const MAX_NOTE: u64 = 16 << 10;

/// What was downloaded, by what the server calls it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The last one that was downloaded whole and handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    complete: Option<String>,
    /// What the file is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partial: Option<String>,
}

/// A download of one place.
#[derive(Debug)]
pub(super) struct Part {
    file: PathBuf,
    note: PathBuf,
    noted: Note,
    limit: u64,
}

impl Part {
    /// The download `name` in a directory that need not exist; what is not readable there counts as absent.
    pub(super) async fn open(directory: &Path, name: &str, limit: u64) -> Self {
        let (file, note) = (directory.join(format!("{name}.part")), directory.join(format!("{name}.json")));
        let path = note.clone();
        let read = blocking::run(note.clone(), DEADLINE, move |_| match path.metadata() {
            Ok(metadata) if metadata.len() <= MAX_NOTE => fs::read(path),
            Ok(_) => Err(io::Error::other("too large")),
            Err(error) => Err(error),
        });
        let noted = read.await.flatten().ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, note, noted, limit }
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// What was downloaded whole and need not be requested again.
    pub(super) fn complete(&self) -> Option<&str> {
        self.noted.complete.as_deref()
    }

    /// What the file is of, and how many bytes it has; `None`: there is nothing to go on with.
    pub(super) async fn partial(&self) -> Option<(String, u64)> {
        let (version, path) = (self.noted.partial.clone()?, self.file.clone());
        let size = blocking::run(self.file.clone(), DEADLINE, move |_| path.metadata().map(|file| file.len()));
        size.await.flatten().ok().filter(|size| *size > 0).map(|size| (version, size))
    }

    /// Begins at `offset`, or goes on there. `version` is what the server calls it; without a name it is not gone on with later.
    pub(super) async fn write_from(&mut self, version: Option<String>, offset: u64) -> io::Result<Writer> {
        self.noted.partial = version;
        self.save().await?;
        Writer::open(self.file.clone(), offset, self.limit).await
    }

    /// The file was handed over and is not needed any more. `version`: it need not be requested again.
    pub(super) async fn done(&mut self, version: Option<String>) -> io::Result<()> {
        self.noted = Note { complete: version, partial: None };
        self.save().await?;
        let path = self.file.clone();
        match blocking::run(self.file.clone(), DEADLINE, move |_| fs::remove_file(path)).await? {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn save(&self) -> io::Result<()> {
        let (path, bytes) = (self.note.clone(), serde_json::to_vec(&self.noted)?);
        blocking::run(self.note.clone(), DEADLINE, move |_| {
            if let Some(directory) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            let beside = path.with_extension("new");
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(beside, path)
        })
        .await?
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_download_goes_on_where_it_stopped_and_a_whole_one_is_not_requested_again() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("bundle");
        let mut part = Part::open(&directory, "url", 10).await;
        assert_eq!((part.complete(), part.partial().await), (None, None));
        let writer = part.write_from(Some("a".to_owned()), 0).await.unwrap();
        writer.write(b"1234").await.unwrap().finish().await.unwrap();
        let mut part = Part::open(&directory, "url", 10).await;
        assert_eq!(part.partial().await, Some(("a".to_owned(), 4)));
        let writer = part.write_from(Some("a".to_owned()), 3).await.unwrap();
        writer.write(b"xyz").await.unwrap().finish().await.unwrap();
        assert_eq!(fs::read(part.path()).unwrap(), b"123xyz");
        let writer = part.write_from(Some("b".to_owned()), 0).await.unwrap();
        assert!(writer.write(&[0; 11]).await.unwrap_err().to_string().contains("bundle.maxSize"));
        part.done(Some("b".to_owned())).await.unwrap();
        let part = Part::open(&directory, "url", 10).await;
        assert_eq!((part.complete(), part.partial().await), (Some("b"), None));
        assert!(!part.path().exists());
    }
}
