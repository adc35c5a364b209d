//! Sets an unusable database aside, so that the agent continues with a new one.
//!
//! redb reports most damage as an error, but panics on some, which aborts a release build. So a panic while the
//! database is in use renames the file first: the next start finds no file, instead of panicking again, and creates one
//! from the intact records ([`super::salvage`], which never panics).

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use jiff::Timestamp;

/// The suffix of a database that was set aside.
const DAMAGED: &str = ".damaged-";
/// The suffix once its records have been salvaged.
const SALVAGED: &str = ".salvaged-";

thread_local! {
    /// The database in use by this thread.
    static IN_USE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Runs `work` on the database at `path`; if it panics, the file is set aside before the panic continues.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            previous(info);
            if let Some(path) = IN_USE.take() {
                match set_aside(&path) {
                    Ok(aside) => tracing::error!(aside = %aside.display(), "damaged database set aside"),
                    Err(error) => {
                        tracing::error!(%error, path = %path.display(), "cannot set the damaged database aside")
                    }
                }
            }
        }));
    });
    IN_USE.set(Some(path.to_owned()));
    let done = work();
    IN_USE.set(None);
    done
}

/// Renames `path` to `<path>.damaged-<time>`, numbered if that exists, and returns the new path.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = free(path, &format!("{DAMAGED}{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))?;
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// The newest database that was set aside and not salvaged yet.
pub(super) fn unsalvaged(path: &Path) -> Option<PathBuf> {
    siblings(path, DAMAGED).pop()
}

/// Renames a set aside database to mark it as salvaged. Returns its path.
pub(super) fn mark_salvaged(path: &Path, aside: PathBuf) -> PathBuf {
    let name = aside.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once(DAMAGED));
    let Some((_, when)) = name else { return aside };
    match free(path, &format!("{SALVAGED}{when}")).and_then(|read| std::fs::rename(&aside, &read).map(|()| read)) {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%error, path = %aside.display(), "cannot rename the salvaged database");
            aside
        }
    }
}

/// All databases that were set aside, newest last.
pub(super) fn set_aside_before(path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = [SALVAGED, DAMAGED].iter().flat_map(|kind| siblings(path, kind)).collect();
    all.sort_by_key(|path| {
        path.extension().map(|end| end.to_string_lossy().split_once('-').map(|(_, at)| at.to_owned()))
    });
    all
}

/// `<path><suffix>`, or with the first number appended that is free.
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

/// The files named `path` plus `suffix` and more, in the order of their names and so of their times.
fn siblings(path: &Path, suffix: &str) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{name}{suffix}");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let like = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
    let mut paths: Vec<PathBuf> = entries.filter(like).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
