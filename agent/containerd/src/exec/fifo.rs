//! The named pipes between a process in a container and the agent, through containerd's shim.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

/// The file that records the container id of a directory.
const OWNER_FILE: &str = "container";

/// A session's directory of FIFOs.
#[derive(Debug, Clone)]
pub(crate) struct Fifos {
    directory: PathBuf,
}

/// The agent's ends. They are opened before the shim opens its own, without blocking.
#[derive(Debug)]
pub(super) struct FifoEnds {
    pub(super) stdin: Option<Sender>,
    pub(super) stdout: Receiver,
    pub(super) stderr: Option<Receiver>,
}

/// Opens without a check that the file is a FIFO, which only root could replace: tokio makes it by a call whose times
/// have 32 bits on armv7, so that it fails for every file of 2038 and later.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.unchecked(true);
    options
}

impl Fifos {
    /// Creates the directory of session `id` of a container below `base`, private to root, and the FIFOs in it.
    pub(super) fn make(
        base: &Path,
        id: &str,
        container: &str,
        stdin: bool,
        stderr: bool,
    ) -> io::Result<(Self, FifoEnds)> {
        let fifos = Self { directory: base.join(id) };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&fifos.directory)?;
        let ends = fifos.open(container, stdin, stderr);
        if ends.is_err() {
            fifos.remove();
        }
        Ok((fifos, ends?))
    }

    fn open(&self, container: &str, stdin: bool, stderr: bool) -> io::Result<FifoEnds> {
        std::fs::write(self.directory.join(OWNER_FILE), container)?;
        for (name, wanted) in [("stdin", stdin), ("stdout", true), ("stderr", stderr)] {
            if wanted {
                rustix::fs::mknodat(CWD, self.directory.join(name), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
            }
        }
        // Opening for writing only fails without a reader, so the sender is also a reader until it is dropped.
        let sender = || options().read_write(true).open_sender(self.directory.join("stdin"));
        let receiver = |name| options().open_receiver(self.directory.join(name));
        Ok(FifoEnds {
            stdin: stdin.then(sender).transpose()?,
            stdout: receiver("stdout")?,
            stderr: stderr.then(|| receiver("stderr")).transpose()?,
        })
    }

    /// Reopens the agent's ends of an orphaned session: a shim in the middle of a start blocks until there is a
    /// reader.
    pub(super) fn reopen(&self) -> Vec<Receiver> {
        let receiver = |name| options().open_receiver(self.directory.join(name)).ok();
        ["stdout", "stderr"].into_iter().filter_map(receiver).collect()
    }

    /// The path for containerd; empty for an unused stream.
    pub(super) fn path(&self, name: &str, wanted: bool) -> String {
        if wanted { self.directory.join(name).to_string_lossy().into_owned() } else { String::new() }
    }

    /// Removes the directory. If that fails, [`orphans`] finds it later.
    pub(super) fn remove(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            tracing::debug!(path = %self.directory.display(), %error, "removing the FIFOs of a command failed");
        }
    }
}

/// Orphaned sessions of a killed agent, with id, container and directory.
pub(crate) fn orphans(base: &Path) -> Vec<(String, String, Fifos)> {
    let Ok(entries) = std::fs::read_dir(base) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // Without an owner the session was never passed to containerd.
            let container = std::fs::read_to_string(entry.path().join(OWNER_FILE)).unwrap_or_default();
            Some((entry.file_name().into_string().ok()?, container, Fifos { directory: entry.path() }))
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn both_sides_open_in_any_order_and_see_when_the_other_closes() {
        let base = tempfile::tempdir().unwrap();
        let (fifos, ends) = Fifos::make(base.path(), "one", "c1", true, false).unwrap();
        let (mut stdin, mut stdout) = (ends.stdin.unwrap(), ends.stdout);
        // Opens the shim's end.
        let mut reader = std::fs::File::open(fifos.path("stdin", true)).unwrap();
        let mut writer = std::fs::File::options().write(true).open(fifos.path("stdout", true)).unwrap();
        stdin.write_all(b"in").await.unwrap();
        drop(stdin);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "in");
        writer.write_all(b"out").unwrap();
        drop(writer);
        text.clear();
        stdout.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "out");
        assert_eq!(fifos.path("stderr", false), "");
    }

    #[tokio::test]
    async fn orphaned_sessions_are_found_with_their_container() {
        let base = tempfile::tempdir().unwrap();
        assert!(orphans(&base.path().join("none")).is_empty());
        let (fifos, _ends) = Fifos::make(base.path(), "one", "c1", true, true).unwrap();
        let orphaned = orphans(base.path());
        assert_eq!((orphaned[0].0.as_str(), orphaned[0].1.as_str()), ("one", "c1"));
        fifos.remove();
        assert!(orphans(base.path()).is_empty());
    }
}
