//! The node's plugins, which register as with kubelet: device plugins and CSI drivers, by gRPC over their own
//! sockets.
//!
//! [`plugin_directory`] finds the sockets; [`device_plugins`] and [`csi`] call the plugins. `limpet-core` decides
//! which device a container gets.

pub mod csi;
pub mod device_plugins;
pub mod plugin_directory;
mod plugin_socket;
pub mod settings;
