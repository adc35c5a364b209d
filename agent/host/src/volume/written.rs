//! configMap, secret, downwardAPI and projected volumes on the node: a directory whose files are replaced atomically.
//!
//! This is kubelet's atomic writer: the files are in a separate directory, `..<time>`; `..data` is a symlink to it,
//! and each top-level name is a symlink through `..data`. A new version is written beside the old one and replaces it
//! by one rename of `..data`. Containers mount the volume's directory, so they see one version or the other. Secret,
//! downwardAPI and projected volumes are on a tmpfs, configMaps on disk. The next write removes incomplete versions
//! of a crash.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Volume;
use zeroize::Zeroizing;

use super::payload::{Payload, PayloadFile};
use super::{VolumeError, files, plugin_directory, removal, tmpfs};
use crate::selinux;
use limpet_model::pod::volume_kind::VolumeKind;

/// The symlink that is swapped, and its next version.
const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";
/// kubelet's permissions of the volume and of the directories in it.
const VOLUME_MODE: u32 = 0o777;
const DIRECTORY_MODE: u32 = 0o755;
/// Permissions that `fsGroup` adds to read-only directories and files: the group is inherited, and may search and
/// read.
const GROUP_DIRECTORY_MODE: u32 = 0o2550;
const GROUP_FILE_MODE: u32 = 0o440;
/// The most names that are tried for a new directory.
const MAX_NAME_ATTEMPTS: u32 = 100;

/// A volume to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrittenVolume {
    pub path: PathBuf,
    /// The size of its tmpfs in bytes; `None`: it is on disk.
    pub memory: Option<u64>,
    pub group: Option<u32>,
    pub payload: Payload,
}

/// The path of a volume of these kinds, and whether it is on a tmpfs; `None` for other kinds.
pub(super) fn location(pod_dir: &Path, volume: &Volume) -> Option<(PathBuf, bool)> {
    let kind = VolumeKind::find(volume).filter(|kind| kind.is_written())?;
    // As in kubelet, what may be secret is never on disk.
    let memory = !matches!(kind, VolumeKind::ConfigMap(_));
    Some((plugin_directory::volume(pod_dir, kind.plugin(), &volume.name), memory))
}

impl WrittenVolume {
    /// Writes the payload into the volume. Returns whether its content changed.
    pub(super) fn set_up(&self) -> Result<bool, VolumeError> {
        if let Some(parent) = self.path.parent() {
            files::make_dirs(parent, 0o750)?;
        }
        let of_group = self.group.map_or(0, |_| GROUP_DIRECTORY_MODE);
        if let Some(size) = self.memory {
            tmpfs::mount_private(&self.path, size, tmpfs::MODE | of_group, self.group)?;
        } else {
            files::make_dirs(&self.path, DIRECTORY_MODE)?;
            set_owner(&self.path, None, self.group, VOLUME_MODE | of_group)?;
        }
        let current = self.current()?;
        let changed = match &current {
            Some(current) => !self.is_current(&self.path.join(current))?,
            None => true,
        };
        let current = if changed { self.swap()? } else { current.unwrap_or_default() };
        self.link()?;
        self.clear(&current)?;
        Ok(changed)
    }

    /// The name of the directory that `..data` links to.
    fn current(&self) -> Result<Option<String>, VolumeError> {
        let link = self.path.join(DATA);
        match std::fs::read_link(&link) {
            Ok(target) => {
                let name = target.to_str().filter(|name| name.starts_with("..") && !name.contains('/'));
                Ok(name.filter(|name| self.path.join(name).is_dir()).map(str::to_owned))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(VolumeError::io("read", link)(error)),
        }
    }

    /// Whether the files in `dir` are exactly the payload, with their permissions and group.
    fn is_current(&self, dir: &Path) -> Result<bool, VolumeError> {
        let mut paths = BTreeSet::new();
        list(dir, "", &mut paths)?;
        if !paths.iter().eq(self.payload.keys()) {
            return Ok(false);
        }
        for (path, file) in &self.payload {
            let file_path = dir.join(path);
            let metadata = file_path.symlink_metadata().map_err(VolumeError::io("stat", &file_path))?;
            let same = metadata.mode() & 0o7777 == self.file_mode(file.mode)
                && self.group.is_none_or(|group| metadata.gid() == group)
                && file.user.is_none_or(|user| metadata.uid() == user)
                && metadata.len() == file.bytes.len() as u64;
            let read = || std::fs::read(&file_path).map(Zeroizing::new).map_err(VolumeError::io("read", &file_path));
            if !same || read()?.as_slice() != file.bytes.expose() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the payload into a new directory and points `..data` to it. Returns the directory's name.
    fn swap(&self) -> Result<String, VolumeError> {
        let name = self.make_directory()?;
        let dir = self.path.join(&name);
        for (path, file) in &self.payload {
            self.write_file(&dir, path, file)?;
        }
        set_owner(&dir, None, self.group, self.directory_mode())?;
        // The label of the containers that mount the volume, set before they see it.
        selinux::inherit(&dir, &self.path).map_err(VolumeError::io("label", &dir))?;
        let next = self.path.join(DATA_NEXT);
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(VolumeError::io("remove", next)(error));
            }
            _ => {}
        }
        symlink(&name, &next).map_err(VolumeError::io("make symlink", &next))?;
        let data = self.path.join(DATA);
        std::fs::rename(&next, &data).map_err(VolumeError::io("replace", data))?;
        Ok(name)
    }

    fn make_directory(&self) -> Result<String, VolumeError> {
        let stamp = Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string();
        let mut number = 0;
        loop {
            let name = format!("{stamp}{number:02}");
            match std::fs::create_dir(self.path.join(&name)) {
                Ok(()) => return Ok(name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAME_ATTEMPTS => number += 1,
                Err(error) => return Err(VolumeError::io("make directory", self.path.join(name))(error)),
            }
        }
    }

    fn write_file(&self, dir: &Path, path: &str, file: &PayloadFile) -> Result<(), VolumeError> {
        let mut parent = dir.to_owned();
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            parent.push(part);
            files::make_dirs(&parent, DIRECTORY_MODE)?;
            set_owner(&parent, None, self.group, self.directory_mode())?;
        }
        let target = parent.join(name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
        let written = opened.and_then(|mut opened| opened.write_all(file.bytes.expose()));
        written.map_err(VolumeError::io("write", &target))?;
        set_owner(&target, file.user, self.group, self.file_mode(file.mode))
    }

    /// Creates missing top-level names. As in kubelet, a directory that a subPath created there is not changed.
    fn link(&self) -> Result<(), VolumeError> {
        for name in self.top_names() {
            let link = self.path.join(name);
            if link.symlink_metadata().is_err() {
                let target = Path::new(DATA).join(name);
                symlink(target, &link).map_err(VolumeError::io("make symlink", &link))?;
            }
        }
        Ok(())
    }

    /// Removes names that are no longer in the payload, and every directory except `current`.
    fn clear(&self, current: &str) -> Result<(), VolumeError> {
        let wanted = self.top_names();
        let entries = std::fs::read_dir(&self.path).map_err(VolumeError::io("list", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(VolumeError::io("list", &self.path))?;
            let (name, path) = (entry.file_name(), entry.path());
            let Some(name) = name.to_str() else { continue };
            let kind = entry.file_type().map_err(VolumeError::io("stat", &path))?;
            if kind.is_dir() && name.starts_with("..") && name != current {
                removal::remove(&self.path, name)?;
            } else if kind.is_symlink() && !name.starts_with("..") && !wanted.contains(name) {
                let ours = std::fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA));
                if ours {
                    std::fs::remove_file(&path).map_err(VolumeError::io("remove", &path))?;
                }
            }
        }
        Ok(())
    }

    fn top_names(&self) -> BTreeSet<&str> {
        self.payload.keys().filter_map(|path| path.split('/').next()).collect()
    }

    fn directory_mode(&self) -> u32 {
        DIRECTORY_MODE | self.group.map_or(0, |_| GROUP_DIRECTORY_MODE)
    }

    fn file_mode(&self, mode: u32) -> u32 {
        mode | self.group.map_or(0, |_| GROUP_FILE_MODE)
    }
}

/// Sets the owner, group and permissions of `path` if they differ, to avoid flash writes. Permissions come last,
/// because changing the group clears the set-group-id bit.
fn set_owner(path: &Path, user: Option<u32>, group: Option<u32>, mode: u32) -> Result<(), VolumeError> {
    let metadata = path.symlink_metadata().map_err(VolumeError::io("stat", path))?;
    let owned = group.is_none_or(|group| metadata.gid() == group) && user.is_none_or(|user| metadata.uid() == user);
    if metadata.mode() & 0o7777 == mode && owned {
        return Ok(());
    }
    if user.is_some() || group.is_some() {
        std::os::unix::fs::chown(path, user, group).map_err(VolumeError::io("set the owner of", path))?;
    }
    files::set_mode(path, mode)
}

/// The files below `dir`, by path from there.
fn list(dir: &Path, prefix: &str, paths: &mut BTreeSet<String>) -> Result<(), VolumeError> {
    for entry in std::fs::read_dir(dir).map_err(VolumeError::io("list", dir))? {
        let entry = entry.map_err(VolumeError::io("list", dir))?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), &format!("{path}/"), paths)?,
            _ => {
                paths.insert(path);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
