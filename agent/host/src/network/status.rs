//! Whether there is a network to attach pods to.

use super::conflist::{ConfigError, Conflist};

/// Whether pods can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkStatus {
    Ready {
        /// The network's name.
        name: String,
    },
    /// The configuration is missing or invalid: pods without `hostNetwork` wait.
    NotReady {
        /// The cause, with the path.
        reason: String,
    },
}

impl NetworkStatus {
    /// Whether there is a configuration to attach pods by.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }
}

impl std::fmt::Display for NetworkStatus {
    /// kubelet's message, followed by the reason.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready { name } => write!(f, "network {name} is ready"),
            Self::NotReady { reason } => write!(
                f,
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:Network plugin returns error: cni plugin not initialized: {reason}"
            ),
        }
    }
}

/// The status that results from reading the configuration.
pub(super) fn status_of(read: &Result<Conflist, ConfigError>) -> NetworkStatus {
    match read {
        Ok(conflist) => NetworkStatus::Ready { name: conflist.name.clone() },
        Err(error) => NetworkStatus::NotReady { reason: error.to_string() },
    }
}
