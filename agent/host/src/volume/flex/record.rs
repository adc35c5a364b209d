//! What is written down of a volume that a driver has mounted or filled, beside the pod's volumes: a further container's
//! start calls the driver no second time, and a driver that fails to unmount it is called until it has.
//!
//! It counts for one run of the kernel: after a start of the node nothing is mounted.

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
    /// The run of the kernel.
    pub boot: String,
    /// The driver has mounted something; otherwise it has filled the directory.
    pub mounted: bool,
    /// Its files get the SELinux label of the container.
    pub relabel: bool,
}

/// Where the record of that volume is; kubelet has the directory for data of plugins.
fn path(pod_dir: &Path, driver: &str, volume: &str) -> PathBuf {
    pod_dir.join("plugins").join(driver).join(format!("{volume}.json"))
}

/// The record of the volume in this run of the kernel. One that cannot be read is none. Blocks.
pub(super) fn read(pod_dir: &Path, driver: &str, volume: &str) -> Option<Record> {
    let text = files::read_bounded(&path(pod_dir, driver, volume), MAX_RECORD).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    boot_id().is_ok_and(|boot| boot == record.boot).then_some(record)
}

/// Writes it down. Blocks.
pub(super) fn write(pod_dir: &Path, driver: &str, volume: &str, record: &Record) -> Result<(), VolumeError> {
    let path = path(pod_dir, driver, volume);
    files::make_dirs(path.parent().unwrap_or(&path), 0o750)?;
    let new = path.with_extension("new");
    let text = serde_json::to_vec(record).map_err(|error| VolumeError::io("write", &path)(error.into()))?;
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
    written.map_err(VolumeError::io("write", &path))
}

/// Removes it. Blocks.
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
        let found = || read(dir.path(), "fstab~cifs", "data");
        assert_eq!(found(), None);
        let record = Record { boot: boot_id().unwrap(), mounted: true, relabel: false };
        write(dir.path(), "fstab~cifs", "data", &record).unwrap();
        assert_eq!(found(), Some(record.clone()));
        write(dir.path(), "fstab~cifs", "data", &Record { boot: "another".to_owned(), ..record }).unwrap();
        assert_eq!(found(), None);
        for _ in 0..2 {
            remove(dir.path(), "fstab~cifs", "data").unwrap();
        }
    }
}
