//! Errors of attaching and detaching pods.

use std::io;
use std::path::PathBuf;

use super::NetworkStatus;
use limpet_model::pod::PodUid;

/// Why a pod could not be attached or detached. Each failure may be transient (the configuration is written, the
/// plugin installed, an address released), so the pod's worker retries with back-off.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is no usable configuration.
    #[error("network is not ready: {0}")]
    NotReady(NetworkStatus),
    /// The pod has host ports, and no plugin of the network forwards them.
    #[error(
        "network of pod {pod}: hostPort needs a plugin with the portMappings capability, and network {network:?} has \
         none; add the portmap plugin to its configuration"
    )]
    NoPortMappings {
        /// Namespace and name.
        pod: String,
        /// The network's name.
        network: String,
    },
    /// The plugin is not installed.
    #[error("network of pod {pod}: failed to find plugin {plugin:?} in {dirs}; install it there")]
    PluginMissing {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// The directories that were searched.
        dirs: String,
    },
    /// The plugin failed, with its own message.
    #[error("network of pod {pod}: plugin type={plugin:?} failed ({command}): {message}")]
    Plugin {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        /// CNI's error code, if any; 11 is "try again later".
        code: Option<u32>,
        message: String,
    },
    /// The plugin could not be run or did not exit in time.
    #[error("network of pod {pod}: plugin type={plugin:?} ({command}): {reason}")]
    Invocation {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        reason: String,
    },
    /// A file of the pod's attachment could not be read or written, or its namespace does not exist.
    #[error("network of pod {uid}: cannot {operation} {}: {source}", path.display())]
    File { uid: PodUid, operation: &'static str, path: PathBuf, source: io::Error },
}
