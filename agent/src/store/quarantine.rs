//! Setting a database aside that cannot be used, so that the agent goes on with a new one.
//!
//! redb reports most damage, but answers some with a panic, and a release build ends there. So a panic while the
//! database is in use renames the file first: the next start finds none, instead of the same one for ever.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

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

/// Renames `path` to the first free `<path>.damaged-<n>` and returns that.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for n in 1..=u32::MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{n}"));
        let aside = PathBuf::from(name);
        if !aside.try_exists()? {
            std::fs::rename(path, &aside)?;
            return Ok(aside);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
