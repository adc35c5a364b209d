//! Setting a database aside that cannot be used, so that the agent goes on with a new one.
//!
//! redb reports most damage, but answers some with a panic, and a release build ends there. So a panic while the
//! database is in use renames the file first: the next start finds none, instead of the same one for ever, and makes
//! a new one of what is intact in it ([`super::salvage`], which panics at nothing).

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use jiff::Timestamp;

/// Behind the name of a database that was set aside.
const DAMAGED: &str = ".damaged-";
/// The same once its records have been taken over.
const READ: &str = ".salvaged-";

thread_local! {
    /// The database this thread is working in.
    static IN_USE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Runs `work` on the database at `path`; if it panics, the file is set aside before the panic goes on.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            previous(info);
            if let Some(path) = IN_USE.take() {
                match set_aside(&path) {
                    Ok(aside) => tracing::error!(aside = %aside.display(), "damaged database set aside"),
                    Err(error) => tracing::error!(%error, path = %path.display(), "damaged database stays"),
                }
            }
        }));
    });
    IN_USE.set(Some(path.to_owned()));
    let done = work();
    IN_USE.set(None);
    done
}

/// Renames `path` to `<path>.damaged-<time>`, with a number behind it when that is taken, and returns that.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = free(path, &format!("{DAMAGED}{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))?;
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// The newest database that was set aside and whose records have not been taken over.
pub(super) fn unread(path: &Path) -> Option<PathBuf> {
    siblings(path, DAMAGED).pop()
}

/// Names a set aside database as one whose records have been taken over. Returns its name then.
pub(super) fn mark_read(path: &Path, aside: PathBuf) -> PathBuf {
    let name = aside.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once(DAMAGED));
    let Some((_, when)) = name else { return aside };
    match free(path, &format!("{READ}{when}")).and_then(|read| std::fs::rename(&aside, &read).map(|()| read)) {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%error, path = %aside.display(), "a damaged database keeps its name");
            aside
        }
    }
}

/// All databases that were set aside, the newest last.
pub(super) fn set_aside_before(path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = [READ, DAMAGED].iter().flat_map(|kind| siblings(path, kind)).collect();
    all.sort_by_key(|path| {
        path.extension().map(|end| end.to_string_lossy().split_once('-').map(|(_, at)| at.to_owned()))
    });
    all
}

/// `<path><suffix>`, or with the first number behind it that is free.
fn free(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    for n in 1..=u32::MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        if n > 1 {
            name.push(format!("-{n}"));
        }
        let free = PathBuf::from(name);
        if !free.try_exists()? {
            return Ok(free);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Files beside `path` called as it is with `suffix` behind, in the order of their names and so of their times.
fn siblings(path: &Path, suffix: &str) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{name}{suffix}");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let like = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
    let mut found: Vec<PathBuf> = entries.filter(like).map(|entry| entry.path()).collect();
    found.sort();
    found
}
