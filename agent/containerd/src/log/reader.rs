//! Reads container logs for `limpet logs` and kubelet's `/containerLogs`: whole, from the end, or as they are
//! written.
//!
//! All files of a log are read as one: rotated files first. A rotation while following loses no line, because the
//! reader leaves a file only after its successor exists and it was read to its end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{Stream, TryFutureExt as _};
use tokio::sync::watch;

use super::follow::{LogWatch, wait_for_writer};
use super::paths::{among_generations, generations};
use super::read_options::ReadOptions;
use super::render::Render;
use super::start::{self, Start};
use limpet_host::blocking;
use limpet_log::directory::open_file;

/// The size of a read, and the approximate size of a returned chunk, in bytes.
const CHUNK: usize = 64 << 10;
/// The longest line; valid entries are far shorter.
const LINE_LIMIT: usize = 256 << 10;
/// kubelet's limits for `FallbackToLogsOnError`: lines, and bytes of these lines.
const TERMINATION_LINES: u64 = 80;
const TERMINATION_BYTES: usize = 2_048;

/// Reads the log whose newest file is `path`. `finished` reports that the container has exited, which ends a follower
/// once everything is read; other readers stop at the end of the log.
///
/// # Errors
///
/// The stream's first item is `NotFound` if the log does not exist. Any item may be a read error, which is the last
/// item.
pub fn read(
    path: PathBuf,
    options: ReadOptions,
    finished: watch::Receiver<bool>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    open(path, options, finished).try_flatten_stream()
}

/// Like [`read`], but has located the first line when it returns, so a follower misses nothing that is written from
/// then on.
///
/// # Errors
///
/// `NotFound` if the log does not exist.
pub async fn open(
    path: PathBuf,
    options: ReadOptions,
    finished: watch::Receiver<bool>,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + Send> {
    let reading = Box::new(Reading::start(path, options, finished).await?);
    Ok(futures_util::stream::try_unfold(reading, async |mut reading| {
        Ok(reading.next().await?.map(|bytes| (bytes, reading)))
    }))
}

/// Whether there is a log whose newest file is, or was, `path`.
pub async fn exists(path: &Path) -> bool {
    let path = path.to_owned();
    blocking(path.clone(), move || generations(&path)).await.is_ok_and(|files| !files.is_empty())
}

/// A log being read, and the watch that reports new lines.
struct Reading {
    path: PathBuf,
    /// `None` once everything was returned.
    files: Option<Files>,
    /// `None` unless new lines are requested.
    follow: Option<LogWatch>,
    finished: watch::Receiver<bool>,
}

impl Reading {
    async fn start(path: PathBuf, options: ReadOptions, finished: watch::Receiver<bool>) -> io::Result<Self> {
        // Created before the first read, so that later writes are reported.
        let follow = if options.follow { Some(LogWatch::new(&path).await?) } else { None };
        let files = blocking(path.clone(), {
            let path = path.clone();
            move || Files::open(path, &options)
        })
        .await?;
        Ok(Self { path, files: Some(files), follow, finished })
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(mut files) = self.files.take() {
            let last = self.follow.is_none();
            let (files, step) = blocking(self.path.clone(), move || {
                let step = files.next(last)?;
                Ok((files, step))
            })
            .await?;
            match step {
                ReadOutcome::Text(bytes) => {
                    self.files = Some(files);
                    return Ok(Some(bytes));
                }
                ReadOutcome::End(bytes) => return Ok(Some(bytes).filter(|bytes| !bytes.is_empty())),
                ReadOutcome::Wait => {
                    self.files = Some(files);
                    self.wait().await;
                }
            }
        }
        Ok(None)
    }

    /// Returns when there may be more to read, or nothing left to follow.
    async fn wait(&mut self) {
        let Some(watch) = &mut self.follow else { return };
        let finished = &mut self.finished;
        let go_on = tokio::select! {
            // An error means that the directory was removed, so only the open file is still read.
            changed = watch.changed() => changed.is_ok(),
            // A dropped sender counts as finished. The guard is dropped inside the block.
            () = async { drop(finished.wait_for(|finished| *finished).await) } => {
                wait_for_writer(&self.path).await;
                false
            }
        };
        if !go_on {
            self.follow = None;
        }
    }
}

/// Runs `work` on the log at `path`, on a blocking thread.
async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    blocking::run(path, blocking::DEADLINE, |_| work()).await?
}

/// The end of a container's log for its status message: at most 80 lines and 2,048 bytes (`terminationMessagePolicy:
/// FallbackToLogsOnError`). Call it after the container's exit; it waits until the last line is in the log.
///
/// # Errors
///
/// The log does not exist or cannot be read.
pub async fn tail_for_termination_message(path: &Path) -> io::Result<String> {
    wait_for_writer(path).await;
    let path = path.to_owned();
    blocking(path.clone(), move || last_bytes(path)).await
}

fn last_bytes(path: PathBuf) -> io::Result<String> {
    let options = ReadOptions { tail_lines: Some(TERMINATION_LINES), ..ReadOptions::default() };
    let mut files = Files::open(path, &options)?;
    let mut end = Vec::new();
    loop {
        let step = files.next(true)?;
        let (ReadOutcome::Text(text) | ReadOutcome::End(text)) = &step else { continue };
        end.extend_from_slice(text);
        end.drain(..end.len().saturating_sub(TERMINATION_BYTES));
        if matches!(step, ReadOutcome::End(_)) {
            break;
        }
    }
    // A truncated first character is dropped rather than replaced, so that the limit holds.
    let cut = end.iter().take(3).take_while(|byte| (0x80..0xC0).contains(*byte)).count();
    Ok(String::from_utf8_lossy(&end[cut..]).into_owned())
}

/// The result of one read.
enum ReadOutcome {
    /// Text; there may be more.
    Text(Bytes),
    /// The last text, may be empty.
    End(Bytes),
    /// Nothing to read now.
    Wait,
}

/// The files of a log, read in order. Blocks.
struct Files {
    path: PathBuf,
    file: File,
    /// Whether a newer file exists, so this one no longer grows.
    superseded: bool,
    /// The beginning of an unfinished line, and then the next read.
    buffer: Vec<u8>,
    /// Whether the line in the buffer is too long to be valid and is being skipped.
    overlong: bool,
    render: Render,
}

impl Files {
    fn open(path: PathBuf, options: &ReadOptions) -> io::Result<Self> {
        let Start { mut file, offset, skip } = start::find(&path, options)?;
        file.seek(SeekFrom::Start(offset))?;
        let render = Render::new(options, skip);
        Ok(Self { path, file, superseded: false, buffer: Vec::new(), overlong: false, render })
    }

    /// Reads until there is a chunk of text, or nothing left; with `last`, that is the end.
    fn next(&mut self, last: bool) -> io::Result<ReadOutcome> {
        loop {
            if self.render.is_full() {
                return Ok(ReadOutcome::End(self.render.take().into()));
            }
            if self.render.ready() >= CHUNK {
                return Ok(ReadOutcome::Text(self.render.take().into()));
            }
            if self.read()? || self.advance()? {
                continue;
            }
            if last {
                self.render.finish();
                return Ok(ReadOutcome::End(self.render.take().into()));
            }
            return Ok(match self.render.ready() {
                0 => ReadOutcome::Wait,
                _ => ReadOutcome::Text(self.render.take().into()),
            });
        }
    }

    /// Reads once. Returns false at the end of the file.
    fn read(&mut self) -> io::Result<bool> {
        let start = self.buffer.len();
        self.buffer.resize(start + CHUNK, 0);
        let count = self.file.read(&mut self.buffer[start..]);
        self.buffer.truncate(start + count.as_ref().copied().unwrap_or(0));
        if count? == 0 {
            return Ok(false);
        }
        let mut begin = 0;
        while let Some(length) = self.buffer[begin..].iter().position(|byte| *byte == b'\n') {
            if !std::mem::take(&mut self.overlong) {
                self.render.push(&self.buffer[begin..begin + length]);
            }
            begin += length + 1;
        }
        self.buffer.drain(..begin);
        if self.buffer.len() > LINE_LIMIT {
            self.overlong = true;
            self.buffer.clear();
        }
        Ok(true)
    }

    /// At the end of a file, continues with the next one; returns false if there is none. The file is read once more
    /// before it is left, because its writer may have written between the last read and the rename.
    fn advance(&mut self) -> io::Result<bool> {
        let current = self.file.metadata()?;
        if current.len() < self.file.stream_position()? {
            // The file was truncated to free disk space.
            self.buffer.clear();
            self.file.seek(SeekFrom::Start(0))?;
            return Ok(current.len() > 0);
        }
        let identity = (current.dev(), current.ino());
        // The file with the newest name has no successor. This check avoids listing the directory for each new line.
        if std::fs::metadata(&self.path).is_ok_and(|newest| (newest.dev(), newest.ino()) == identity) {
            return Ok(false);
        }
        let Some(next) = among_generations(&self.path, |files| successor(files, identity))? else { return Ok(false) };
        if self.superseded {
            self.file = next;
            self.buffer.clear();
            self.overlong = false;
        }
        self.superseded = !self.superseded;
        Ok(true)
    }
}

/// The file after the one with this identity; the oldest if that was removed.
fn successor(names: &[PathBuf], current: (u64, u64)) -> io::Result<Option<File>> {
    let mut oldest = None;
    let mut passed = false;
    for path in names {
        let file = match open_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let metadata = file.metadata()?;
        if passed {
            return Ok(Some(file));
        }
        passed = (metadata.dev(), metadata.ino()) == current;
        oldest = oldest.or(Some(file));
    }
    Ok(if passed { None } else { oldest })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
