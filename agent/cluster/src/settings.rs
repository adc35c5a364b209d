//! The settings of a node that is part of a cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use limpet_core::node_object::{Frequencies, NodeTaint};

/// `--kubeconfig` and the related settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// `--kubeconfig`, absolute; `None`: the node is in no cluster, and the other settings have no effect.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`, absolute: with it the node requests a certificate while it has no valid one.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `rotateCertificates`: the node requests the next certificate before the current one expires.
    pub rotate_certificates: bool,
    /// The server of the kubeconfig's current context.
    pub server: String,
    /// `--register-node`, `registerNode`.
    pub register: bool,
    /// `--node-labels`. Outside a cluster they apply to the node selectors of its pods.
    pub labels: BTreeMap<String, String>,
    /// `--provider-id`, `providerID`: the provider's name for the machine.
    pub provider_id: Option<String>,
    /// `--cloud-provider=external`: a cloud controller of the cluster completes the Node.
    pub external_cloud: bool,
    /// `--register-with-taints`, `registerWithTaints`.
    pub taints: Vec<NodeTaint>,
    /// `nodeStatusReportFrequency` and `nodeStatusUpdateFrequency`.
    pub frequencies: Frequencies,
    /// `nodeStatusMaxImages`: the most images in the Node's status; `None`: all.
    pub max_images: Option<usize>,
    /// `nodeLeaseDurationSeconds`.
    pub lease_duration: Duration,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            rotate_certificates: false,
            server: String::new(),
            register: true,
            labels: BTreeMap::new(),
            provider_id: None,
            external_cloud: false,
            taints: Vec::new(),
            frequencies: Frequencies { report: Duration::from_secs(300), correction: Duration::from_secs(10) },
            max_images: Some(50),
            lease_duration: Duration::from_secs(40),
        }
    }
}

impl ClusterSettings {
    /// Whether this agent requests the node's client certificate.
    pub fn manages_certificate(&self) -> bool {
        self.bootstrap_kubeconfig.is_some() || self.rotate_certificates
    }
}
