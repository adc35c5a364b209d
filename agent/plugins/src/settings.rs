//! The settings of devices and of the directory in which plugins find their sockets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use limpet_model::node::Device;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSettings {
    /// `devices`, by the resource's name.
    pub devices: BTreeMap<String, Device>,
    /// `cdiSpecDirectories`; later ones take precedence.
    pub cdi_dirs: Vec<PathBuf>,
    pub directory: PluginDirectory,
}

/// `pluginDirectory`: where plugins find their sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginDirectory {
    /// Where plugins look for kubelet's.
    #[default]
    OfKubelet,
    At(PathBuf),
    Off,
}

impl Default for PluginSettings {
    fn default() -> Self {
        Self {
            devices: BTreeMap::new(),
            cdi_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            directory: PluginDirectory::default(),
        }
    }
}

impl PluginSettings {
    /// The directory with `device-plugins` and `plugins_registry`, if plugins are served. Beside a kubelet it is
    /// limpet's own.
    pub fn directory(&self, beside_kubelet: bool) -> Option<PathBuf> {
        match &self.directory {
            PluginDirectory::OfKubelet if beside_kubelet => None,
            PluginDirectory::OfKubelet => Some("/var/lib/kubelet".into()),
            PluginDirectory::At(path) => Some(path.clone()),
            PluginDirectory::Off => None,
        }
    }
}
