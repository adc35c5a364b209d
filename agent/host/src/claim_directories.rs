//! The directories of the node's own PersistentVolumeClaims.
//!
//! | path below the directory of all claims | what |
//! |---|---|
//! | `<source>/<namespace>/<claim>/data` | the files of a claim |
//! | `<source>/<namespace>/<claim>/retained` | exists: the files are kept when the claim is gone |
//! | `.id` | identifies this directory: a copy is in the agent's persistent directory |
//! | `.removed/<id>` | the files of a claim that is gone, until they are removed |
//!
//! A claim is found by its source, namespace and name alone, so no database can be lost. A directory is made complete under
//! another name and renamed; one that is no claim's is renamed before its files are removed: after a power cut at any
//! moment it is all there, or no claim's. `.id` tells a directory whose file system is not mounted from an empty one: then
//! nothing is made, and nothing removed.
//!
//! Everything here blocks.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::project_quota;

/// As of the provisioner of that name: the files' owners are those of the containers.
const MODE: u32 = 0o777;
const ID: &str = ".id";
const REMOVED: &str = ".removed";
const RETAINED: &str = "retained";
/// Bytes of an id that are read at most.
const MAX_ID: u64 = 64;

/// A directory cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimDirectoryError {
    /// An access to a file failed.
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    /// The directory is not the one that it was.
    #[error(
        "{} is not the directory that has the files of claims; mount its file system, or, to begin without files, remove {}",
        base.display(), id.display()
    )]
    Elsewhere {
        /// The directory of all claims.
        base: PathBuf,
        /// What is known of the right one.
        id: PathBuf,
    },
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimDirectoryError {
    let path = path.to_owned();
    move |source| ClaimDirectoryError::Io { verb, path, source }
}

/// Which claim a directory is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundClaim {
    /// The name of its source.
    pub source: String,
    pub namespace: String,
    pub name: String,
    /// It is kept when the claim is gone.
    pub retained: bool,
}

/// The directory of all claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimDirectories {
    base: PathBuf,
    /// The copy of its id.
    id: PathBuf,
}

impl ClaimDirectories {
    /// The claims' directory `base` of an agent with that persistent directory. Does not access the disk.
    pub fn new(base: &Path, root_dir: &Path) -> Self {
        Self { base: base.to_owned(), id: root_dir.join("persistent-volumes-id") }
    }

    /// The claims that have a directory. What an interrupted removal has left is removed.
    ///
    /// # Errors
    /// A directory cannot be read, or is not the one that it was.
    pub fn list(&self) -> Result<Vec<FoundClaim>, ClaimDirectoryError> {
        if !self.verify()? {
            return Ok(Vec::new());
        }
        self.clear_removed()?;
        let mut claims = Vec::new();
        for source in directories(&self.base)? {
            let source_dir = self.base.join(&source);
            for namespace in directories(&source_dir)? {
                let namespace_dir = source_dir.join(&namespace);
                for name in directories(&namespace_dir)? {
                    let retained = namespace_dir.join(&name).join(RETAINED).exists();
                    let (source, namespace) = (source.clone(), namespace.clone());
                    claims.push(FoundClaim { source, namespace, name, retained });
                }
            }
        }
        Ok(claims)
    }

    /// Makes the directory `data` of a claim unless it is there, and limits it to `size` bytes if its file system can. Returns
    /// whether it does.
    ///
    /// # Errors
    /// It cannot be made, or the directory of all claims is not the one that it was.
    pub fn make(&self, data: &Path, size: u64, retained: bool) -> Result<bool, ClaimDirectoryError> {
        let claim_dir = data.parent().unwrap_or(data);
        let _turn = turn();
        if !self.verify()? {
            self.begin()?;
        }
        if !data.is_dir() {
            make_dirs(claim_dir)?;
            mark(claim_dir, retained)?;
            let new = claim_dir.join("new");
            if new.exists() {
                fs::remove_dir_all(&new).map_err(failed("remove", &new))?;
            }
            fs::DirBuilder::new().mode(0o700).create(&new).map_err(failed("make directory", &new))?;
            if let Err(error) = project_quota::count(&new) {
                tracing::debug!(path = %data.display(), %error, "the claim's size cannot be limited");
            }
            fs::set_permissions(&new, Permissions::from_mode(MODE)).map_err(failed("set the permissions of", &new))?;
            fs::rename(&new, data).map_err(failed("make directory", data))?;
            sync(claim_dir)?;
        }
        Ok(project_quota::limit(data, size))
    }

    /// Notes whether the claim's files are kept when it is gone. One without a directory is left alone.
    ///
    /// # Errors
    /// It cannot be written, or the directory of all claims is not the one that it was.
    pub fn retain(&self, data: &Path, retained: bool) -> Result<(), ClaimDirectoryError> {
        let claim_dir = data.parent().unwrap_or(data);
        let _turn = turn();
        if self.verify()? && claim_dir.is_dir() { mark(claim_dir, retained) } else { Ok(()) }
    }

    /// Removes the files of a claim that is gone. One without a directory is left alone.
    ///
    /// # Errors
    /// They cannot be removed, or the directory of all claims is not the one that it was. From the moment that they are renamed they
    /// are no claim's, also if the rest fails.
    pub fn remove(&self, data: &Path) -> Result<(), ClaimDirectoryError> {
        let Some(removed) = self.rename_away(data)? else { return Ok(()) };
        fs::remove_dir_all(&removed).map_err(failed("remove", &removed))?;
        let _turn = turn();
        // Another removal may have something in it.
        drop(fs::remove_dir(self.base.join(REMOVED)));
        Ok(())
    }

    /// Takes its name from the directory of a claim. Returns where it is then; `None`: there is none.
    fn rename_away(&self, data: &Path) -> Result<Option<PathBuf>, ClaimDirectoryError> {
        let claim_dir = data.parent().unwrap_or(data);
        let _turn = turn();
        if !self.verify()? || !claim_dir.is_dir() {
            return Ok(None);
        }
        make_dirs(&self.base.join(REMOVED))?;
        let removed = self.base.join(REMOVED).join(fresh_id()?);
        fs::rename(claim_dir, &removed).map_err(failed("rename", claim_dir))?;
        claim_dir.parent().map_or(Ok(()), sync)?;
        // Those of the namespace and the source, if they are empty.
        let parents = claim_dir.ancestors().skip(1).take_while(|parent| **parent != self.base);
        parents.take(2).for_each(|parent| drop(fs::remove_dir(parent)));
        Ok(Some(removed))
    }

    fn clear_removed(&self) -> Result<(), ClaimDirectoryError> {
        let removed = self.base.join(REMOVED);
        match fs::remove_dir_all(&removed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &removed)(error)),
            _ => Ok(()),
        }
    }

    /// Whether the directory is there, and is the one that it was.
    fn verify(&self) -> Result<bool, ClaimDirectoryError> {
        let marker = self.base.join(ID);
        match (read_id(&marker)?, read_id(&self.id)?) {
            (Some(project), Some(known)) if project == known => Ok(true),
            // The agent's persistent directory is new.
            (Some(project), None) => write_synced(&self.id, &project).map(|()| true),
            (None, None) => Ok(false),
            (_, Some(_)) => Err(ClaimDirectoryError::Elsewhere { base: self.base.clone(), id: self.id.clone() }),
        }
    }

    /// Makes the directory, which has never been there.
    fn begin(&self) -> Result<(), ClaimDirectoryError> {
        make_dirs(&self.base)?;
        let id = fresh_id()?;
        write_synced(&self.base.join(ID), &id)?;
        write_synced(&self.id, &id)
    }
}

/// Pods that begin at the same time must not make the same directory. Files are removed without it.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates `path` and missing parents, for root alone.
fn make_dirs(path: &Path) -> Result<(), ClaimDirectoryError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(path).map_err(failed("make directory", path))
}

/// Notes beside the files whether they are kept.
fn mark(claim_dir: &Path, retained: bool) -> Result<(), ClaimDirectoryError> {
    let path = claim_dir.join(RETAINED);
    if path.exists() == retained {
        return Ok(());
    }
    if retained {
        File::create(&path).map_err(failed("write", &path))?;
    } else {
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    sync(claim_dir)
}

fn sync(directory: &Path) -> Result<(), ClaimDirectoryError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", directory))
}

fn write_synced(path: &Path, text: &str) -> Result<(), ClaimDirectoryError> {
    let new = path.with_file_name(format!("{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(failed("write", path))?;
    path.parent().map_or(Ok(()), sync)
}

fn read_id(path: &Path) -> Result<Option<String>, ClaimDirectoryError> {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(MAX_ID).read_to_string(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn fresh_id() -> Result<String, ClaimDirectoryError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    fs::read_to_string(path).map(|id| id.trim().to_owned()).map_err(failed("read", path))
}

/// The names of the directories in `path`, but for those that begin with a dot, as no name of a claim does.
fn directories(path: &Path) -> Result<Vec<String>, ClaimDirectoryError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("read", path))? {
        let entry = entry.map_err(failed("read", path))?;
        let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
