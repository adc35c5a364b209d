//! What a device plugin has given one container: which devices, and what the container needs to use them. It is
//! recorded on the container, so that the next attempt gets the same, also after a restart of agent and node.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The prefix of annotations whose values name CDI devices.
pub const CDI_ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// The devices of one resource that a container has, as the plugin answered `Allocate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAllocation {
    pub resource: String,
    /// The ids of the devices, sorted.
    pub ids: Vec<String>,
    /// Environment variables, which the Pod's own override.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files and directories of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<PluginMount>,
    /// Device nodes of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PluginDevice>,
    /// Annotations; those with [`CDI_ANNOTATION_PREFIX`] name CDI devices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// CDI devices by their qualified names: `vendor.com/class=name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdi_devices: Vec<String>,
}

impl DeviceAllocation {
    /// The CDI devices by annotation, in the order of the keys, and by name; each once.
    pub fn cdi_names(&self) -> Vec<&str> {
        let annotated = self.annotations.iter().filter(|(key, _)| key.starts_with(CDI_ANNOTATION_PREFIX));
        let annotated = annotated.flat_map(|(_, value)| value.split(','));
        let mut names = Vec::new();
        for name in annotated.chain(self.cdi_devices.iter().map(String::as_str)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// A file or directory of the host that a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginMount {
    pub container_path: PathBuf,
    /// Its path on the host.
    pub host_path: PathBuf,
    /// Whether the container must not write to it.
    #[serde(default)]
    pub read_only: bool,
}

/// A device node of the host, or a directory of them, that a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginDevice {
    pub container_path: PathBuf,
    /// Its path on the host.
    pub host_path: PathBuf,
    /// What the device cgroup allows: of `r`, `w` and `m`.
    pub permissions: String,
}
