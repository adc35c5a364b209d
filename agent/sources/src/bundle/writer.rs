//! A file that is written as its bytes arrive, up to a size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use limpet_host::blocking::{self, DEADLINE};

/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
    piece: Vec<u8>,
}

impl Writer {
    /// Opens a file that only root can read, and writes from `offset` on; at most `limit` bytes are there in the end. Its
    /// directory is made.
    pub(super) async fn open(path: PathBuf, offset: u64, limit: u64) -> io::Result<Self> {
        let opening = path.clone();
        let opened = blocking::run(path.clone(), DEADLINE, move |_| {
            if let Some(directory) = opening.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&opening)?;
            file.set_len(offset)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok::<_, io::Error>(file)
        });
        let file = opened.await??;
        Ok(Self { path, file, size: offset, limit, piece: Vec::new() })
    }

    /// Appends bytes; they are in the file after [`Self::finish`].
    pub(super) async fn write(mut self, bytes: &[u8]) -> io::Result<Self> {
        self.size += bytes.len() as u64;
        if self.size > self.limit {
            let limit = self.limit;
            return Err(io::Error::other(format!("it is larger than {limit} bytes: raise bundle.maxSize")));
        }
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE { self.flush().await } else { Ok(self) }
    }

    /// Writes the bytes that were collected and do not fill a piece.
    pub(super) async fn finish(self) -> io::Result<()> {
        self.flush().await.map(drop)
    }

    async fn flush(mut self) -> io::Result<Self> {
        blocking::run(self.path.clone(), DEADLINE, move |_| {
            let written = self.file.write_all(&self.piece);
            self.piece.clear();
            written.map(|()| self)
        })
        .await?
    }
}
