//! The node's NFS tools without a server: a `mount.nfs` that bind-mounts a directory of the test in place of each
//! export.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// A directory of programs for the agent's `PATH`, and the exports.
#[derive(Debug)]
pub struct NfsTools {
    programs: PathBuf,
    exports: PathBuf,
    calls: PathBuf,
}

impl NfsTools {
    /// Below `dir`; there is no `mount.nfs` yet.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub fn below(dir: &Path) -> Result<Self> {
        let tools = Self { programs: dir.join("programs"), exports: dir.join("exports"), calls: dir.join("calls") };
        fs::create_dir_all(&tools.programs)?;
        fs::create_dir_all(&tools.exports)?;
        Ok(tools)
    }

    /// The directory with the programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Creates what the server has at `path`.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn export(&self, path: &str) -> Result<PathBuf> {
        let directory = self.exports.join(path.trim_start_matches('/'));
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// Installs a `mount.nfs`. It records its arguments, refuses what is not exported like the real one, and never
    /// returns for a server called `dead`.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn install(&self) -> Result<()> {
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {calls}\n\
             case $1 in dead:*) exec sleep 100000 ;; esac\n\
             export={exports}/${{1#*:}}\n\
             [ -d \"$export\" ] || {{ echo \"mount.nfs: access denied by server while mounting $1\" >&2; exit 32; }}\n\
             mount --bind \"$export\" \"$2\" || exit 32\n\
             case \",$4,\" in *,ro,*) mount -o remount,bind,ro \"$2\" ;; esac\n",
            calls = self.calls.display(),
            exports = self.exports.display(),
        );
        // It is renamed, because a program that is open for writing cannot be run.
        let written = self.programs.join("new");
        fs::write(&written, script)?;
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(written, self.programs.join("mount.nfs"))?)
    }

    /// The arguments of each call so far.
    pub fn calls(&self) -> Vec<String> {
        fs::read_to_string(&self.calls).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}
