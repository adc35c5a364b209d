//! local: a directory of the node that a claim names, or is. As in kubelet, its files get the `fsGroup` of the first pod
//! that uses it; concurrent pods would otherwise take the files from each other.
//!
//! The pods that use it are recorded in their directories: containers mount the directory itself, so no mount on the
//! node shows it.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::source::VolumeSource;
use super::{VolumeError, Warning, blocking, files};
use crate::fs_group;
use crate::keyed_lock::KeyedLock;
use limpet_model::object::PodObjects;
use limpet_model::pod::{PodRecord, PodUid};

/// The directory with records of a pod's volumes of this kind, below the pod's directory.
const RECORDS: &str = "plugins/kubernetes.io~local-volume";
/// The most bytes of a record that are read: a path.
const MAX_RECORD: u64 = 4 << 10;
/// kubelet's message.
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// A writable volume of a pod with an `fsGroup`, or the claim of a manifest.
#[derive(Debug, Clone)]
pub(super) struct LocalVolume {
    volume: String,
    path: PathBuf,
    group: Option<u32>,
    on_root_mismatch: bool,
    /// No other pod may have it.
    single_pod: bool,
}

impl LocalVolume {
    /// The pod's volumes of this kind.
    pub(super) fn all(pod: &PodRecord, objects: &PodObjects, pod_dir: &Path) -> Result<Vec<Self>, VolumeError> {
        let context = pod.spec().security_context.as_ref();
        let group = context.and_then(|context| u32::try_from(context.fs_group?).ok());
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        let mut volumes = Vec::new();
        for volume in pod.spec().volumes.iter().flatten() {
            let (path, group, single_pod) = match VolumeSource::find(volume, pod, objects, pod_dir)? {
                Some((VolumeSource::Node(path), _)) if path.owned && group.is_some() => (path.path, group, false),
                Some((VolumeSource::Claim(claim), _)) => {
                    (claim.path, group.filter(|_| claim.writable), claim.single_pod)
                }
                _ => continue,
            };
            let on_root_mismatch = policy == Some("OnRootMismatch");
            volumes.push(Self { volume: volume.name.clone(), path, group, on_root_mismatch, single_pod });
        }
        Ok(volumes)
    }

    /// Gives the files to the group, unless another pod uses the volume; if that one's group differs, returns
    /// kubelet's warning. `locks` has one lock per path.
    pub(super) async fn set_up(
        &self,
        pods: &Path,
        uid: &PodUid,
        locks: &KeyedLock<PathBuf>,
    ) -> Result<Option<Warning>, VolumeError> {
        let _guard = locks.lock(self.path.clone()).await;
        let (volume, pods, uid) = (self.clone(), pods.to_owned(), uid.clone());
        blocking(self.path.clone(), fs_group::DEADLINE, move |_| volume.take(&pods, &uid)).await
    }

    fn take(&self, pods: &Path, uid: &PodUid) -> Result<Option<Warning>, VolumeError> {
        let is_shared = is_of_another(pods, uid, &self.path)?;
        if is_shared && self.single_pod {
            return Err(VolumeError::Claim { volume: self.volume.clone(), reason: IN_USE.to_owned() });
        }
        let warning = match self.group {
            Some(group) if is_shared => self.differs(group)?,
            Some(group) => {
                let set = fs_group::set(&self.path, group, self.on_root_mismatch);
                set.map_err(VolumeError::io("set fsGroup", &self.path))?;
                None
            }
            None => None,
        };
        let records = records(&pods.join(uid.as_str()));
        files::make_dirs(&records, 0o750)?;
        let record = records.join(&self.volume);
        std::fs::write(&record, self.path.as_os_str().as_bytes()).map_err(VolumeError::io("write", &record))?;
        Ok(warning)
    }

    fn differs(&self, group: u32) -> Result<Option<Warning>, VolumeError> {
        let current = self.path.metadata().map_err(VolumeError::io("stat", &self.path))?.gid();
        let message = format!(
            "The requested fsGroup is {}, but the volume {} has GID {current}. The volume may not be shareable.",
            group, self.volume
        );
        Ok((current != group).then_some(Warning { reason: "AlreadyMountedVolume", message }))
    }
}

/// The directory with records of the pod's volumes of this kind.
pub(super) fn records(pod_dir: &Path) -> PathBuf {
    pod_dir.join(RECORDS)
}

/// Removes the pod's records, because it no longer runs; another pod's group may now get the files. Blocks.
pub(super) fn give_back(pod_dir: &Path) -> Result<(), VolumeError> {
    let records = records(pod_dir);
    match std::fs::remove_dir_all(&records) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::io("remove", &records)(error)),
        _ => Ok(()),
    }
}

/// Whether another pod uses the directory at `path`. Blocks.
fn is_of_another(pods: &Path, uid: &PodUid, path: &Path) -> Result<bool, VolumeError> {
    for other in files::directories(pods)?.iter().filter(|other| *other != uid.as_str()) {
        let records = records(&pods.join(other));
        let entries = match std::fs::read_dir(&records) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(VolumeError::io("read", &records))?,
        };
        let is_same = |entry: io::Result<std::fs::DirEntry>| {
            let text = entry.and_then(|entry| files::read_bounded(&entry.path(), MAX_RECORD));
            text.is_ok_and(|text| text == path.as_os_str().as_bytes())
        };
        if entries.into_iter().any(is_same) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_tests::need;

    use super::*;

    #[test]
    fn the_first_pod_of_a_volume_gives_it_its_group() {
        if need::root("owners of files").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (pods, path) = (dir.path().join("pods"), dir.path().join("disk"));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        let uid = |digit: u8| PodUid::new(format!("0d2f3b51-6c0e-4f7a-9d0b-4c9d3f6a1e7{digit}"));
        let volume = |group: u32| LocalVolume {
            volume: "data".to_owned(),
            path: path.clone(),
            group: Some(group),
            on_root_mismatch: false,
            single_pod: false,
        };
        let group = || path.join("file").metadata().unwrap().gid();
        for pod in 1..=3 {
            std::fs::create_dir_all(pods.join(uid(pod).as_str())).unwrap();
        }
        assert_eq!((volume(4000).take(&pods, &uid(1)).unwrap(), group()), (None, 4000));
        let warning = volume(5000).take(&pods, &uid(2)).unwrap().unwrap();
        assert_eq!((warning.reason, group()), ("AlreadyMountedVolume", 4000));
        assert!(warning.message.starts_with("The requested fsGroup is 5000, but the volume data has GID 4000."));
        assert_eq!(volume(4000).take(&pods, &uid(3)).unwrap(), None);
        // A recreated sandbox prepares the volume again. Then all other pods have ended.
        assert_eq!(volume(5000).take(&pods, &uid(2)).unwrap().unwrap(), warning);
        for pod in [1, 3] {
            give_back(&pods.join(uid(pod).as_str())).unwrap();
        }
        assert_eq!((volume(5000).take(&pods, &uid(2)).unwrap(), group()), (None, 5000));
    }
}
