//! Records of the disks that pods have on this node, written before anything is done for them, so that any later
//! agent knows what to undo.
//!
//! | path in `plugins/kubernetes.io/iscsi/iface-<interface>/<portal>-<iqn>-lun-<lun>` | content |
//! |---|---|
//! | `disk.json` | the disk, and where limpet has logged in to its target |
//! | `pods/<uid>` | a pod that has it |
//! | `mount` | where its file system is mounted for all pods |

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use crate::boot::boot_id;
use crate::volume::{VolumeError, files};
use limpet_model::pod::PodUid;

const FILE: &str = "disk.json";
const PODS: &str = "pods";
/// Bytes of a record that are read at most.
const MAX_RECORD: u64 = 1 << 20;

/// A disk in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub disk: Disk,
    /// The portals at which limpet has logged in; sessions at other portals are not limpet's.
    pub logged_in: Vec<SocketAddr>,
    /// The boot id of these logins.
    pub boot: String,
    /// Its names in the Node's status, one per volume.
    #[serde(default)]
    pub unique_names: BTreeSet<String>,
}

/// The steps at a portal when the last pod releases the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DetachPlan {
    /// Whether to delete the disk from the kernel.
    pub delete: bool,
    /// Whether to end the session.
    pub log_out: bool,
}

impl Record {
    /// Whether the session at `portal` is limpet's, from this boot.
    pub(super) fn owns(&self, portal: SocketAddr, boot: &str) -> bool {
        self.boot == boot && self.logged_in.contains(&portal)
    }

    /// What to do at `portal` when the disk is released while `others` are in use.
    pub(super) fn ending(&self, portal: SocketAddr, others: &[Self], boot: &str) -> DetachPlan {
        let sharing = || others.iter().filter(|other| self.disk.shares_session(&other.disk, portal));
        let ours = self.owns(portal, boot);
        DetachPlan {
            delete: ours && !sharing().any(|other| other.disk.lun == self.disk.lun),
            log_out: ours && sharing().next().is_none(),
        }
    }
}

pub(super) fn boot() -> String {
    boot_id().unwrap_or_default()
}

/// Where the disk's file system is mounted.
pub(super) fn mount_point(directory: &Path) -> PathBuf {
    directory.join("mount")
}

/// Records that the pod has the disk, with that name in the Node's status. Blocks.
pub(super) fn begin(disks: &Path, disk: &Disk, name: String, uid: &PodUid) -> Result<Record, VolumeError> {
    let directory = disk.directory(disks);
    files::make_dirs(&directory.join(PODS), 0o750)?;
    let boot = boot();
    let fresh =
        || Record { disk: disk.clone(), logged_in: Vec::new(), boot: boot.clone(), unique_names: BTreeSet::new() };
    let mut record = read(&directory).unwrap_or_else(fresh);
    if record.boot != boot {
        // Sessions end at a reboot, so those that exist now are not limpet's.
        record = Record { unique_names: record.unique_names, ..fresh() };
    }
    record.unique_names.insert(name);
    // Another volume may have further portals of the same disk.
    let further: Vec<_> = disk.portals.iter().filter(|portal| !record.disk.portals.contains(portal)).copied().collect();
    record.disk.portals.extend(further);
    save(disks, &record)?;
    files::make_file(&directory.join(PODS).join(uid.as_str()), 0o640)?;
    Ok(record)
}

/// Replaces the record. Blocks.
pub(super) fn save(disks: &Path, record: &Record) -> Result<(), VolumeError> {
    let directory = record.disk.directory(disks);
    let (path, new) = (directory.join(FILE), directory.join(format!(".{FILE}")));
    let text = serde_json::to_vec(record).map_err(|error| VolumeError::io("write", &path)(error.into()))?;
    let write = || {
        fs::write(&new, &text)?;
        fs::File::open(&new)?.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(VolumeError::io("write", &path))
}

/// Every recorded disk. Blocks.
pub(super) fn all(disks: &Path) -> Result<Vec<Record>, VolumeError> {
    let mut records = Vec::new();
    for interface in list(disks)? {
        for directory in list(&interface)? {
            records.extend(read(&directory));
        }
    }
    Ok(records)
}

/// The pod's disks. Blocks.
pub(super) fn of_pod(disks: &Path, uid: &PodUid) -> Result<Vec<Record>, VolumeError> {
    let mut records = all(disks)?;
    records.retain(|record| record.disk.directory(disks).join(PODS).join(uid.as_str()).exists());
    Ok(records)
}

/// Whether another pod has the disk. Blocks.
pub(super) fn is_shared(directory: &Path, uid: &PodUid) -> Result<bool, VolumeError> {
    let pods = list(&directory.join(PODS))?;
    Ok(pods.iter().any(|pod| pod.file_name().is_some_and(|name| name != uid.as_str())))
}

/// Removes the pod from the disk's record. Blocks.
pub(super) fn leave(directory: &Path, uid: &PodUid) -> Result<(), VolumeError> {
    remove(fs::remove_file, &directory.join(PODS).join(uid.as_str()))
}

/// Removes the record, because no pod has the disk any more. Blocks.
pub(super) fn end(directory: &Path) -> Result<(), VolumeError> {
    // A mount there would be a bug, and must not be emptied.
    remove(fs::remove_dir, &mount_point(directory))?;
    for pod in list(&directory.join(PODS))? {
        remove(fs::remove_file, &pod)?;
    }
    remove(fs::remove_dir, &directory.join(PODS))?;
    remove(fs::remove_file, &directory.join(format!(".{FILE}")))?;
    remove(fs::remove_file, &directory.join(FILE))?;
    remove(fs::remove_dir, directory)?;
    // Also removes the interface's directory if it has no other disk.
    let _ = directory.parent().map(fs::remove_dir);
    Ok(())
}

fn remove(how: fn(PathBuf) -> io::Result<()>, path: &Path) -> Result<(), VolumeError> {
    match how(path.to_owned()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn read(directory: &Path) -> Option<Record> {
    let path = directory.join(FILE);
    let text = files::read_bounded(&path, MAX_RECORD).ok()?;
    match serde_json::from_slice(&text) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "reading the record of an iSCSI disk failed");
            None
        }
    }
}

/// The entries of a directory; none if it does not exist. Blocks.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, VolumeError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(VolumeError::io("list", directory))?,
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::disk::tests::volume;
    use super::*;

    fn record(fields: serde_json::Value, logged_in: bool) -> Record {
        let disk = Disk::new(&volume(fields)).unwrap();
        let logged_in = if logged_in { disk.portals.clone() } else { Vec::new() };
        Record { disk, logged_in, boot: "b".to_owned(), unique_names: BTreeSet::new() }
    }

    #[test]
    fn only_a_session_of_limpet_that_no_other_disk_needs_ends() {
        let mine = record(json!({}), true);
        let portal = mine.disk.portals[0];
        let ending = |delete: bool, log_out: bool| DetachPlan { delete, log_out };
        assert_eq!(mine.ending(portal, &[], "b"), ending(true, true));
        assert_eq!(mine.ending(portal, &[], "after a reboot"), ending(false, false));
        assert_eq!(record(json!({}), false).ending(portal, &[], "b"), ending(false, false));
        let sibling = record(json!({"lun": 1}), false);
        assert_eq!(mine.ending(portal, &[sibling], "b"), ending(true, false));
        let same = record(json!({"targetPortal": "192.0.2.2", "portals": ["192.0.2.1"]}), false);
        assert_eq!(mine.ending(portal, &[same], "b"), ending(false, false));
        for elsewhere in [
            json!({"targetPortal": "192.0.2.2"}),
            json!({"iqn": "iqn.2001-04.test:b"}),
            json!({"iscsiInterface": "san"}),
        ] {
            assert_eq!(mine.ending(portal, &[record(elsewhere, true)], "b"), ending(true, true));
        }
    }

    #[test]
    fn a_disk_is_written_down_for_each_pod() {
        let dir = tempfile::tempdir().unwrap();
        let disks = dir.path().join("plugins");
        let disk = Disk::new(&volume(json!({}))).unwrap();
        let directory = disk.directory(&disks);
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        assert_eq!(all(&disks).unwrap(), []);
        let mut first = begin(&disks, &disk, "n".to_owned(), &a).unwrap();
        first.logged_in = disk.portals.clone();
        save(&disks, &first).unwrap();
        assert_eq!(begin(&disks, &disk, "n".to_owned(), &b).unwrap(), first);
        assert_eq!(of_pod(&disks, &a).unwrap(), [first.clone()]);
        assert!(is_shared(&directory, &a).unwrap());
        leave(&directory, &b).unwrap();
        assert!(!is_shared(&directory, &a).unwrap());
        assert_eq!(of_pod(&disks, &b).unwrap(), []);

        // After a reboot the session is not limpet's.
        save(&disks, &Record { boot: "before".to_owned(), ..first }).unwrap();
        assert_eq!(begin(&disks, &disk, "n".to_owned(), &a).unwrap().logged_in, []);
        end(&directory).unwrap();
        assert!(!directory.exists());
        end(&directory).unwrap();
    }
}
