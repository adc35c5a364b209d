//! Runs first in `limpet run`: reads the journal and executes the version to run, in its own process.
//!
//! During a trial the current executable keeps its name, so every init system starts it, and it starts the new one.
//! After a version that crashes immediately, or a power cut, it runs again. Each attempt is counted before it begins,
//! and watched by a [`crate::guardian`] of the current version.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guardian;
use crate::journal::{Journal, Step};
use crate::plan::{self, Start};
use crate::slot::{Slot, SlotLock};

/// The variable that tells the agent which executable init has started.
const STARTER_VARIABLE: &str = "LIMPET_STARTER";
/// What the kernel appends to the path of an executable that was replaced.
const REMOVED: &[u8] = b" (deleted)";

/// Executes another version if one should run, and does not return then. Call it first in `main`.
pub fn start_version() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if std::env::var_os(STARTER_VARIABLE).is_some() || !runs_the_agent(&arguments) {
        return;
    }
    let Ok(executable) = std::env::current_exe() else { return };
    let slot = Slot::for_executable(&executable);
    // The second round is for the current version, after one on trial that cannot be executed.
    for _ in 0..2 {
        match choose(&slot, &executable) {
            Ok(Some(version)) => {
                let error = execute(&version, &executable, &arguments);
                eprintln!("limpet: cannot run {}: {error}", version.display());
                give_up(&slot, &format!("it cannot be executed: {error}"));
            }
            Ok(None) => return,
            Err(error) => {
                return eprintln!("limpet: the upgrade in {} does not continue: {error}", slot.directory().display());
            }
        }
    }
}

/// Whether the first argument other than limpet's own options is `run`.
fn runs_the_agent(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().map(OsString::as_os_str);
    while let Some(word) = words.next() {
        if word == OsStr::new("--socket") {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return word == OsStr::new("run");
        }
    }
    false
}

/// Follows the journal. Returns the executable to run instead of this one.
fn choose(slot: &Slot, executable: &Path) -> io::Result<Option<PathBuf>> {
    let journal = slot.journal()?;
    if journal.as_ref().is_none_or(Journal::is_over) {
        return Ok(present(slot, executable));
    }
    let lock = slot.lock()?;
    // Read again under the lock, because its last holder may have written it.
    let Some(journal) = slot.journal()? else { return Ok(present(slot, executable)) };
    match plan::start(Some(&journal), slot.staged().try_exists()?) {
        Start::Present => Ok(present(slot, executable)),
        Start::Install => {
            slot.install(&lock, journal)?;
            Ok(Some(slot.present()))
        }
        Start::Undo { reason } => {
            eprintln!("limpet: limpet {} is undone: {reason}", journal.to);
            slot.undo(&lock, journal, reason)?;
            Ok(present(slot, executable))
        }
        Start::Trial { attempt } => try_version(slot, executable, journal, attempt, lock),
    }
}

fn try_version(
    slot: &Slot,
    executable: &Path,
    journal: Journal,
    attempt: u32,
    lock: SlotLock,
) -> io::Result<Option<PathBuf>> {
    let counted = journal.at(Step::Trial { attempts: attempt });
    slot.write_journal(&counted)?;
    if let Err(error) = guardian::spawn(slot) {
        slot.undo(&lock, counted, format!("nothing can watch it: {error}"))?;
        return Ok(present(slot, executable));
    }
    eprintln!("limpet: trying limpet {} in place of {}, attempt {attempt}", counted.to, counted.from);
    Ok(Some(slot.staged()))
}

/// The current version, if it is not this executable.
fn present(slot: &Slot, executable: &Path) -> Option<PathBuf> {
    let present = slot.present();
    (executable.parent() != Some(slot.directory()) && present.exists()).then_some(present)
}

/// Discards a version that cannot even be executed, so that this one continues.
fn give_up(slot: &Slot, reason: &str) {
    let undo = || match (slot.lock()?, slot.journal()?) {
        (lock, Some(journal)) if !journal.is_over() => slot.undo(&lock, journal, reason.to_owned()),
        _ => Ok(()),
    };
    if let Err(error) = undo() {
        eprintln!("limpet: {error}");
    }
}

/// Replaces this process; returns only if that fails.
fn execute(program: &Path, starter: &Path, arguments: &[OsString]) -> io::Error {
    Command::new(program).args(arguments).env(STARTER_VARIABLE, starter).exec()
}

/// Replaces the agent's process by a new start, as its init system would. Returns only if that fails.
pub fn restart() -> io::Error {
    match starter() {
        Ok(starter) => Command::new(starter).args(std::env::args_os().skip(1)).env_remove(STARTER_VARIABLE).exec(),
        Err(error) => error,
    }
}

/// The executable that init starts.
fn starter() -> io::Result<PathBuf> {
    std::env::var_os(STARTER_VARIABLE).map(PathBuf::from).map_or_else(executable, Ok)
}

/// This executable under its original name, even if another file has that name now.
fn executable() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let bytes = path.as_os_str().as_bytes();
    Ok(bytes.strip_suffix(REMOVED).map_or(path.clone(), |name| OsStr::from_bytes(name).into()))
}

/// The executable for containers' loggers, which is needed as long as they run. A version on trial has its name only
/// for a short time, so it gives them the current one.
///
/// # Errors
///
/// The path of this executable is unknown.
pub fn lasting_executable() -> io::Result<PathBuf> {
    let executable = executable()?;
    let slot = Slot::for_executable(&starter()?);
    if executable != slot.staged() {
        return Ok(executable);
    }
    let present = slot.present();
    if present.exists() { Ok(present) } else { starter() }
}

/// The slot of this agent.
///
/// # Errors
///
/// The path of this executable is unknown.
pub fn agent_slot() -> io::Result<Slot> {
    Ok(Slot::for_executable(&starter()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_limpet_run_starts_an_agent() {
        for (line, expected) in [
            ("run --config /etc/limpet/config.yaml", true),
            ("--socket /run/x run", true),
            ("--socket=/run/x -q run", true),
            ("exec pod -- run", false),
            ("--socket run pods", false),
            ("", false),
        ] {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(runs_the_agent(&words), expected, "{line}");
        }
    }

    #[test]
    fn a_slot_elsewhere_has_the_present_version() {
        let directory = tempfile::tempdir().unwrap();
        let slot = Slot::new(directory.path());
        let installed = Path::new("/usr/bin/limpet");
        assert_eq!(choose(&slot, installed).unwrap(), None);
        std::fs::write(slot.present(), "").unwrap();
        assert_eq!(choose(&slot, installed).unwrap(), Some(slot.present()));
        assert_eq!(choose(&slot, &slot.present()).unwrap(), None);
    }
}
