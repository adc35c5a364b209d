//! Records of volumes in kubelet's files (`vol_data.json`), so that the next agent can unpublish and unstage them.
//! All functions block.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use limpet_host::private_file;

/// The file's name.
const FILE: &str = "vol_data.json";
/// The most bytes of a record that are read.
const MAX_FILE: u64 = 64 << 10;
/// The most volumes of a pod, pods, or staged volumes of a driver that are checked.
const MAX_ENTRIES: usize = 4096;

/// The record of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VolumeData {
    #[serde(rename = "driverName")]
    pub driver: String,
    /// The volume's handle at the driver.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    /// Further fields that kubelet writes.
    #[serde(flatten)]
    pub more: BTreeMap<String, String>,
    /// Whether it is a block device, according to the record's place.
    #[serde(skip)]
    pub block: bool,
}

/// The name of the PersistentVolume, or of the volume in its pod.
const NAME: &str = "specVolID";
/// The key of the volume's name in its pod, which kubelet does not write.
const POD_VOLUME: &str = "limpet.dev/volume";

impl VolumeData {
    /// Whether it is deleted with its pod.
    pub(super) fn is_ephemeral(&self) -> bool {
        self.more.get("volumeLifecycleMode").is_some_and(|mode| mode == "Ephemeral")
    }

    /// The PersistentVolume's name, or the volume's in its pod.
    pub(super) fn name(&self) -> &str {
        self.more.get(NAME).map(String::as_str).unwrap_or_default()
    }

    /// The volume's name in the pod; `None` if an earlier agent has not recorded it.
    pub(super) fn pod_volume(&self) -> Option<&str> {
        self.more.get(POD_VOLUME).map(String::as_str)
    }

    /// Sets what [`Self::pod_volume`] gives.
    pub(super) fn set_pod_volume(&mut self, name: &str) {
        self.more.insert(POD_VOLUME.to_owned(), name.to_owned());
    }

    /// Sets what [`Self::name`] gives.
    pub(super) fn set_name(&mut self, name: &str) {
        self.more.insert(NAME.to_owned(), name.to_owned());
    }

    /// Whether both are records of the same volume.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.driver == other.driver && self.handle == other.handle
    }
}

/// Writes the record into `directory`, which is created.
pub(super) fn write(directory: &Path, data: &VolumeData) -> io::Result<()> {
    make(directory)?;
    private_file::write(&directory.join(FILE), &serde_json::to_string(data)?)
}

/// Creates a directory with kubelet's permissions.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// The record in `directory`, if any.
pub(super) fn read(directory: &Path) -> io::Result<Option<VolumeData>> {
    let file = match fs::File::open(directory.join(FILE)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file?,
    };
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(Some(serde_json::from_str(&text)?))
}

/// Removes the record in `directory` and, if the directory is then empty, itself and `mount_point` in it, which a
/// driver may have left.
pub(super) fn remove(directory: &Path, mount_point: &str) -> io::Result<()> {
    if !mount_point.is_empty() {
        remove_point(&directory.join(mount_point))?;
    }
    // Removed last, because the volume cannot be found without it.
    gone(fs::remove_file(directory.join(FILE)))?;
    gone(fs::remove_dir(directory))
}

/// Removes what a driver has left at a mount point: an empty directory, or a file or link that it has created.
pub(super) fn remove_point(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_dir() => gone(fs::remove_file(path)),
        _ => gone(fs::remove_dir(path)),
    }
}

/// Treats a missing file as removed.
pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The directories in `directory`.
pub(super) fn directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    entries(directory, fs::FileType::is_dir)
}

/// The links in `directory`.
pub(super) fn links(directory: &Path) -> io::Result<Vec<PathBuf>> {
    entries(directory, fs::FileType::is_symlink)
}

fn entries(directory: &Path, is_wanted: fn(&fs::FileType) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut wanted = Vec::new();
    // An unreadable entry may be the one that uses the volume.
    for entry in entries {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) if is_wanted(&kind) && wanted.len() < MAX_ENTRIES => wanted.push(entry.path()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn data(handle: &str) -> VolumeData {
        let more = BTreeMap::from([("volumeLifecycleMode".to_owned(), "Persistent".to_owned())]);
        VolumeData { driver: "d".to_owned(), handle: handle.to_owned(), more, block: false }
    }

    #[test]
    fn what_is_written_down_is_found_and_goes() {
        let pods = tempfile::tempdir().unwrap();
        let directory = pods.path().join("u1/volumes/kubernetes.io~csi/pv");
        assert_eq!(read(&directory).unwrap(), None);
        write(&directory, &data("h")).unwrap();
        assert_eq!(read(&directory).unwrap(), Some(data("h")));
        // kubelet's file.
        let text = r#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Ephemeral"}"#;
        fs::write(directory.join(FILE), text).unwrap();
        assert!(read(&directory).unwrap().unwrap().is_ephemeral());
        fs::create_dir(directory.join("mount")).unwrap();
        remove(&directory, "mount").unwrap();
        assert!(!directory.exists());
        remove(&directory, "mount").unwrap();
    }

    #[test]
    fn what_a_driver_has_left_in_its_directory_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &data("h")).unwrap();
        fs::create_dir_all(dir.path().join("mount/kept")).unwrap();
        assert!(remove(dir.path(), "mount").is_err());
        assert!(read(dir.path()).unwrap().is_some());
    }
}
