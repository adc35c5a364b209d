//! csi: a volume that a CSI driver mounts for one pod.
//!
//! The driver is called by the agent; here is where the volume lies, in kubelet's layout, and whether it is mounted: read from
//! the mount table, since a volume whose server is gone may not answer.

use std::path::{Path, PathBuf};

use super::{VolumeError, nfs};

/// A volume of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CsiMount {
    /// The volume's name in the pod.
    pub volume: String,
    /// The driver.
    pub driver: String,
    /// Where the driver mounts it.
    pub path: PathBuf,
}

/// Where the pod's volumes of drivers are.
pub(super) fn directory(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes/kubernetes.io~csi")
}

impl CsiMount {
    /// The volume `name`, a PersistentVolume's name or its own, as `volume` of the pod.
    pub(super) fn of(pod_dir: &Path, volume: &str, driver: &str, name: &str) -> Self {
        let path = directory(pod_dir).join(name).join("mount");
        Self { volume: volume.to_owned(), driver: driver.to_owned(), path }
    }

    /// Refuses one that is not mounted, which would be an empty directory of the node's disk.
    pub(super) fn check_mounted(&self) -> Result<(), VolumeError> {
        if nfs::is_mounted(&self.path)? {
            return Ok(());
        }
        let reason = format!("CSI driver {} has mounted nothing at {}", self.driver, self.path.display());
        Err(VolumeError::Claim { volume: self.volume.clone(), reason })
    }
}
