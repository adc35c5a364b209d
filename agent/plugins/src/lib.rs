//! The node's plugins, which register as with kubelet: device plugins and CSI drivers, by gRPC over sockets of theirs.
//!
//! [`plugin_directory`] finds the sockets, [`device_plugins`] and [`csi`] speak with the plugins. Which device a container
//! gets is decided in `limpet-core`.

pub mod csi;
pub mod device_plugins;
pub mod plugin_directory;
mod plugin_socket;
pub mod settings;
