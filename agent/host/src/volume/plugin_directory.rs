//! Where the volumes of each plugin are in a pod's directory, in kubelet's layout.

use std::path::{Path, PathBuf};

use limpet_model::pod::volume_kind::VolumePlugin;

/// The directory of all the pod's volumes of this plugin.
pub(super) fn path(pod_dir: &Path, plugin: VolumePlugin) -> PathBuf {
    pod_dir.join("volumes").join(plugin.directory())
}

/// The directory of the links to the plugin's volumes that containers get as devices.
pub(super) fn devices(pod_dir: &Path, plugin: VolumePlugin) -> PathBuf {
    pod_dir.join("volumeDevices").join(plugin.directory())
}

/// The directory of one volume.
pub(super) fn volume(pod_dir: &Path, plugin: VolumePlugin, name: &str) -> PathBuf {
    path(pod_dir, plugin).join(name)
}
