//! The record of a volume that a driver has mounted or filled, beside the pod's volumes: further containers do not
//! call the driver again, and a driver that fails to unmount the volume is called until it succeeds.
//!
//! It is valid for one boot, because after a boot nothing is mounted.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::boot::boot_id;
use crate::volume::{VolumeError, files};

/// Bytes of a record that are read at most.
const MAX_RECORD: u64 = 4 << 10;

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The boot id.
    pub boot: String,
    /// Whether the driver has mounted something; otherwise it has filled the directory.
    pub mounted: bool,
    /// Whether its files get the SELinux label of the container.
    pub relabel: bool,
}

/// The path of a volume's record, in kubelet's directory for plugins' data.
fn path(pod_dir: &Path, driver: &str, volume: &str) -> PathBuf {
    pod_dir.join("plugins").join(driver).join(format!("{volume}.json"))
}

/// The volume's record from this boot. An unreadable record counts as missing. Blocks.
pub(super) fn read(pod_dir: &Path, driver: &str, volume: &str) -> Option<Record> {
    let text = files::read_bounded(&path(pod_dir, driver, volume), MAX_RECORD).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    boot_id().is_ok_and(|boot| boot == record.boot).then_some(record)
}

/// Writes the record. Blocks.
pub(super) fn write(pod_dir: &Path, driver: &str, volume: &str, record: &Record) -> Result<(), VolumeError> {
    let path = path(pod_dir, driver, volume);
    files::make_dirs(path.parent().unwrap_or(&path), 0o750)?;
    let new = path.with_extension("new");
    let text = serde_json::to_vec(record).map_err(|error| VolumeError::io("write", &path)(error.into()))?;
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
    written.map_err(VolumeError::io("write", &path))
}

/// Removes the record. Blocks.
pub(super) fn remove(pod_dir: &Path, driver: &str, volume: &str) -> Result<(), VolumeError> {
    let path = path(pod_dir, driver, volume);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::io("remove", &path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_for_one_run_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let stored = || read(dir.path(), "fstab~cifs", "data");
        assert_eq!(stored(), None);
        let record = Record { boot: boot_id().unwrap(), mounted: true, relabel: false };
        write(dir.path(), "fstab~cifs", "data", &record).unwrap();
        assert_eq!(stored(), Some(record.clone()));
        write(dir.path(), "fstab~cifs", "data", &Record { boot: "another".to_owned(), ..record }).unwrap();
        assert_eq!(stored(), None);
        for _ in 0..2 {
            remove(dir.path(), "fstab~cifs", "data").unwrap();
        }
    }
}
