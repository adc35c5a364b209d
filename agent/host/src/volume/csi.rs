//! csi: a volume that a CSI driver mounts for one pod.
//!
//! The agent calls the driver. This module has the volume's path, in kubelet's layout, and reads from the mount table
//! whether it is mounted, since a volume whose server is gone may not respond.

use std::path::{Path, PathBuf};

use super::host_path::{HostPath, HostPathType};
use super::{VolumeError, mounted, plugin_directory};
use limpet_model::pod::volume_kind::VolumePlugin;

/// A volume of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CsiMount {
    /// The volume's name in the pod.
    pub volume: String,
    pub driver: String,
    /// Where the driver mounts it.
    pub path: PathBuf,
}

/// The device of the volume `name`, a PersistentVolume's name, as `volume` of the pod: kubelet's link to where the
/// driver publishes it.
pub(super) fn device(pod_dir: &Path, volume: &str, name: &str) -> HostPath {
    let path = plugin_directory::devices(pod_dir, VolumePlugin::Csi).join(name);
    HostPath { volume: volume.to_owned(), path, kind: HostPathType::BlockDevice, owned: false }
}

impl CsiMount {
    /// The volume `name`, a PersistentVolume's name or its own, as `volume` of the pod.
    pub(super) fn new(pod_dir: &Path, volume: &str, driver: &str, name: &str) -> Self {
        let path = plugin_directory::volume(pod_dir, VolumePlugin::Csi, name).join("mount");
        Self { volume: volume.to_owned(), driver: driver.to_owned(), path }
    }

    /// Refuses a volume that is not mounted, which would be an empty directory on the node's disk.
    pub(super) fn check_mounted(&self) -> Result<(), VolumeError> {
        if mounted::is_mounted(&self.path)? {
            return Ok(());
        }
        let reason = format!("CSI driver {} has mounted nothing at {}", self.driver, self.path.display());
        Err(VolumeError::Claim { volume: self.volume.clone(), reason })
    }
}
