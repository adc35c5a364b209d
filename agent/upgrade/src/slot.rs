//! The directory of limpet's executables: the current one, the one on trial, the previous one, and the journal. Each
//! change is one rename, so a power cut leaves the old or the new state.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::{self, beside};
use crate::journal::{Journal, Step};

pub(crate) const PROGRAM: &str = "limpet";
/// limpet's shim, which belongs to the same release.
pub(crate) const SHIM: &str = "containerd-shim-limpet-v1";
/// The variable with the slot, for an agent whose executable is elsewhere.
pub(crate) const SLOT_VARIABLE: &str = "LIMPET_SLOT";
const JOURNAL: &str = "limpet-upgrade.json";
/// A journal has some 50 bytes for each pod.
const MAX_JOURNAL_BYTES: u64 = 1 << 20;
const NEW: &str = ".new";
const PREVIOUS: &str = ".previous";

/// A directory of executables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    directory: PathBuf,
}

/// Locks the slot against changes by other processes.
#[derive(Debug)]
pub(crate) struct SlotLock {
    _directory: File,
}

impl Slot {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The slot of the agent with this executable: from the environment, else its directory.
    pub fn for_executable(executable: &Path) -> Self {
        let named = std::env::var_os(SLOT_VARIABLE).filter(|directory| !directory.is_empty()).map(PathBuf::from);
        let beside = || executable.parent().unwrap_or(Path::new("/")).to_owned();
        // The kernel reports executables without symlinks.
        let named = named.map(|directory| directory.canonicalize().unwrap_or(directory));
        Self { directory: named.unwrap_or_else(beside) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The current executable. A slot other than the installed one's may have none yet.
    pub fn present(&self) -> PathBuf {
        self.directory.join(PROGRAM)
    }

    /// The executable before the last upgrade.
    pub fn previous(&self) -> PathBuf {
        beside(&self.present(), PREVIOUS)
    }

    /// The new executable, on trial or not yet.
    pub(crate) fn staged(&self) -> PathBuf {
        beside(&self.present(), NEW)
    }

    /// The new version's shim, until the version is accepted.
    pub(crate) fn staged_shim(&self) -> PathBuf {
        beside(&self.directory.join(SHIM), NEW)
    }

    pub(crate) fn previous_shim(&self) -> PathBuf {
        beside(&self.directory.join(SHIM), PREVIOUS)
    }

    pub fn journal_path(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    /// The newest upgrade; `None` if there was none, or its journal is damaged.
    pub fn journal(&self) -> io::Result<Option<Journal>> {
        let bytes = durable::read(&self.journal_path(), MAX_JOURNAL_BYTES)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    pub(crate) fn write_journal(&self, journal: &Journal) -> io::Result<()> {
        durable::write(&self.journal_path(), &serde_json::to_vec(journal)?, 0o644)
    }

    /// Waits until no other process changes the slot.
    pub(crate) fn lock(&self) -> io::Result<SlotLock> {
        let directory = File::open(&self.directory)?;
        flock(&directory, FlockOperation::LockExclusive)?;
        Ok(SlotLock { _directory: directory })
    }

    /// The same without waiting; `None` if another process holds the lock.
    pub(crate) fn try_lock(&self) -> io::Result<Option<SlotLock>> {
        let directory = File::open(&self.directory)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(SlotLock { _directory: directory })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves what is staged to its place, and keeps the previous version: the agent and its shim. May be repeated after a
    /// power cut.
    pub(crate) fn install(&self, _: &SlotLock, journal: Journal) -> io::Result<()> {
        let shim = self.directory.join(SHIM);
        if self.staged().try_exists()? && !self.staged_shim().try_exists()? && shim.try_exists()? {
            // The new version has the shim of the one that it replaces.
            link(&shim, &self.previous_shim())?;
        }
        // The agent first: once it is moved, a repetition leaves the previous shim as it is.
        self.promote(PROGRAM)?;
        self.promote(SHIM)?;
        self.write_journal(&journal.at(Step::Installed { at: Time(Timestamp::now()) }))
    }

    fn promote(&self, name: &str) -> io::Result<()> {
        let present = self.directory.join(name);
        let staged = beside(&present, NEW);
        if !staged.try_exists()? {
            return Ok(());
        }
        if present.try_exists()? {
            link(&present, &beside(&present, PREVIOUS))?;
        }
        fs::rename(&staged, &present)?;
        if staged.try_exists()? {
            // They are two names of one file, which a rename leaves as they are.
            fs::remove_file(&staged)?;
        }
        durable::sync_directory(&present)
    }

    /// Removes what is staged, after recording that in the journal.
    pub(crate) fn undo(&self, lock: &SlotLock, journal: Journal, reason: String) -> io::Result<()> {
        self.write_journal(&journal.at(Step::Undone { at: Time(Timestamp::now()), reason }))?;
        self.discard(lock)
    }

    /// Removes what is staged.
    pub(crate) fn discard(&self, _: &SlotLock) -> io::Result<()> {
        for staged in [self.staged(), self.staged_shim()] {
            match fs::remove_file(&staged) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // Otherwise a power cut could bring back the shim alone, and the next version would be installed with it.
        durable::sync_directory(&self.present())
    }
}

/// Makes `to` another name of the file `from`, replacing what it was; a copy if the file system has no links.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
    // Renaming one name of a file to another of the same file does nothing, so the new name would stay.
    if fs::metadata(to).is_ok_and(|there| fs::metadata(from).is_ok_and(|file| same(&there, &file))) {
        return Ok(());
    }
    let fresh = beside(to, ".tmp");
    let _ = fs::remove_file(&fresh);
    if fs::hard_link(from, &fresh).is_err() {
        fs::copy(from, &fresh)?;
        File::open(&fresh)?.sync_all()?;
    }
    fs::rename(&fresh, to)
}

fn same(first: &fs::Metadata, second: &fs::Metadata) -> bool {
    (first.dev(), first.ino()) == (second.dev(), second.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `name content` of each file but the journal.
    fn files(slot: &Slot) -> Vec<String> {
        let entries = fs::read_dir(slot.directory()).unwrap().map(|entry| entry.unwrap().path());
        let named = entries.filter(|path| *path != slot.journal_path());
        let text =
            |path: PathBuf| format!("{} {}", path.file_name().unwrap().display(), fs::read_to_string(&path).unwrap());
        let mut all: Vec<_> = named.map(text).collect();
        all.sort();
        all
    }

    #[test]
    fn what_is_staged_takes_the_place_and_what_was_there_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        assert_eq!(slot.journal().unwrap(), None);
        for round in 1..=3 {
            fs::write(slot.staged(), round.to_string()).unwrap();
            let lock = slot.lock().unwrap();
            slot.install(&lock, Journal::fixture(Step::Accepted)).unwrap();
            // Simulates a power cut before the journal was written.
            slot.install(&lock, Journal::fixture(Step::Accepted)).unwrap();
        }
        assert_eq!(files(&slot), ["limpet 3", "limpet.previous 2"]);
        assert!(slot.journal().unwrap().unwrap().is_over());
        fs::write(slot.staged(), "4").unwrap();
        fs::write(slot.staged_shim(), "shim").unwrap();
        slot.undo(&slot.lock().unwrap(), Journal::fixture(Step::Accepted), "it hangs".to_owned()).unwrap();
        assert_eq!(files(&slot), ["limpet 3", "limpet.previous 2"]);
        let undone = slot.journal().unwrap().unwrap();
        assert!(matches!(undone.step, Step::Undone { reason, .. } if reason == "it hangs"));
    }

    #[test]
    fn the_previous_shim_is_that_of_the_previous_agent() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        let upgrade = |agent: &str, shim: Option<&str>| {
            fs::write(slot.staged(), agent).unwrap();
            if let Some(shim) = shim {
                fs::write(slot.staged_shim(), shim).unwrap();
            }
            let lock = slot.lock().unwrap();
            slot.install(&lock, Journal::fixture(Step::Accepted)).unwrap();
            slot.install(&lock, Journal::fixture(Step::Accepted)).unwrap();
        };
        upgrade("1", Some("of 1"));
        upgrade("2", Some("of 2"));
        let shims = |name: &str| [format!("{SHIM} {name}"), format!("{SHIM}.previous of 1")];
        assert_eq!(files(&slot)[..2], shims("of 2"));
        // A bare executable leaves the shim.
        upgrade("3", None);
        let expected = ["of 2", "of 2"].map(str::to_owned);
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!([read(slot.directory().join(SHIM)), read(slot.previous_shim())], expected);
        assert_eq!([read(slot.present()), read(slot.previous())], ["3", "2"]);
        // Back to 2, whose shim is the present one by another name.
        link(&slot.previous(), &slot.staged()).unwrap();
        link(&slot.previous_shim(), &slot.staged_shim()).unwrap();
        slot.install(&slot.lock().unwrap(), Journal::fixture(Step::Accepted)).unwrap();
        let shims = [format!("{SHIM} of 2"), format!("{SHIM}.previous of 2")];
        assert_eq!(files(&slot), [&shims[..], &["limpet 2".to_owned(), "limpet.previous 3".to_owned()]].concat());
    }

    #[test]
    fn a_power_cut_after_the_agent_was_moved_changes_no_previous_shim() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        for (path, content) in [
            (slot.present(), "1"),
            (slot.directory().join(SHIM), "of 1"),
            (slot.staged(), "2"),
            (slot.staged_shim(), "of 2"),
        ] {
            fs::write(path, content).unwrap();
        }
        slot.promote(PROGRAM).unwrap();
        slot.install(&slot.lock().unwrap(), Journal::fixture(Step::Accepted)).unwrap();
        let shims = [format!("{SHIM} of 2"), format!("{SHIM}.previous of 1")];
        assert_eq!(files(&slot), [&shims[..], &["limpet 2".to_owned(), "limpet.previous 1".to_owned()]].concat());
    }

    #[test]
    fn a_power_cut_between_link_and_rename_changes_no_previous_executable() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        fs::write(slot.present(), "1").unwrap();
        fs::write(slot.staged(), "2").unwrap();
        link(&slot.present(), &slot.previous()).unwrap();
        fs::write(beside(&slot.previous(), ".tmp"), "left").unwrap();
        slot.install(&slot.lock().unwrap(), Journal::fixture(Step::Accepted)).unwrap();
        assert_eq!(files(&slot), ["limpet 2", "limpet.previous 1", "limpet.previous.tmp left"]);
    }

    #[test]
    fn a_damaged_journal_counts_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        fs::write(slot.journal_path(), "{\"step\":").unwrap();
        assert_eq!(slot.journal().unwrap(), None);
        slot.write_journal(&Journal::fixture(Step::Accepted)).unwrap();
        assert_eq!(slot.journal().unwrap(), Some(Journal::fixture(Step::Accepted)));
    }
}
