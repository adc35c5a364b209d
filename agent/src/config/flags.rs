//! The flags of `limpet run`: kubelet's flags with the same meaning.

mod server;
mod values;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::kubelet_flags::KubeletFlags;
pub use server::ServerFlags;
pub use values::path;
use values::{switch, verbosity};

/// kubelet's flags, read as pflag reads them: the last value of a repeated flag counts, but lists and maps grow, and an
/// empty value counts as not given. A flag overrides the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(args_override_self = true)]
pub struct RunFlags {
    /// KubeletConfiguration file; a second document in it, kind LimpetConfiguration, holds what kubelet lacks
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// Directory of drop-ins, *.conf, in the order of their names over --config
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub config_dir: Option<PathBuf>,
    /// Name of this node at its first start; later it must be the same
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// containerd's socket [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "ENDPOINT")]
    pub container_runtime_endpoint: Option<String>,
    /// Directory of Pod manifests, or one manifest
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub pod_manifest_path: Option<PathBuf>,
    /// URL of a Pod or a list of Pods
    #[arg(long, value_name = "URL")]
    pub manifest_url: Option<String>,
    /// Headers sent to the URL: name:value[,name:value...]; may be repeated
    #[arg(long, value_name = "HEADERS")]
    pub manifest_url_header: Vec<String>,
    /// How often the URL is requested [default: 20s]
    #[arg(long, value_name = "DURATION")]
    pub http_check_frequency: Option<String>,
    /// Kubeconfig of the cluster that this node joins; without it the node is in no cluster
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig with which the node requests its first certificate; --kubeconfig is then written
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether the node requests its next certificate before the current one expires [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub rotate_certificates: Option<bool>,
    /// Whether the node creates its own Node object [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub register_node: Option<bool>,
    /// The node's address, or one of each family, the primary one first; without it, those of the default route's
    /// interface
    #[arg(long, value_name = "ADDRESSES")]
    pub node_ip: Option<String>,
    /// Identifier of this machine at its provider: the providerID that the node registers with
    #[arg(long, value_name = "ID")]
    pub provider_id: Option<String>,
    /// external: a cloud controller of the cluster sets the node's addresses and removes its first taint
    #[arg(long, value_name = "NAME")]
    pub cloud_provider: Option<String>,
    /// Labels the node registers with: key=value[,key=value...]; may be repeated
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints the node registers with: key[=value]:effect[,key[=value]:effect...]
    #[arg(long, value_name = "TAINTS")]
    pub register_with_taints: Option<String>,
    /// Resources reserved for containerd and this agent: cpu=200m,memory=150Mi,ephemeral-storage=1Gi
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
    /// Resources reserved for everything else on the node
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',')]
    pub system_reserved: Vec<String>,
    /// CredentialProviderConfig: a file or a directory of files that name programs which provide credentials for images
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of these programs
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Directory for state that survives a reboot [default: /var/lib/limpet]
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub root_dir: Option<PathBuf>,
    /// Verbosity of the log, 0 to 10 [default: 2]
    #[serde(rename = "v")]
    #[arg(short = 'v', long = "v", value_name = "LEVEL", value_parser = verbosity)]
    pub verbosity: Option<u8>,
    /// `--socket` or `LIMPET_SOCKET`, which every subcommand has.
    #[arg(skip)]
    pub socket: Option<PathBuf>,
    /// kubelet's other flags.
    #[arg(skip)]
    #[serde(skip)]
    pub kubelet: KubeletFlags,
    /// The flags of the listeners on the network.
    #[serde(flatten)]
    #[command(flatten)]
    pub server: ServerFlags,
}

impl RunFlags {
    /// Name and value of each flag, null for one that is not given. What may be credentials is hidden.
    pub fn values(&self) -> Value {
        let mut values = serde_json::to_value(self).unwrap_or_default();
        if let Some(values) = values.as_object_mut() {
            values.extend(self.kubelet.iter().map(|(name, text)| (name.to_owned(), Value::from(text))));
        }
        let hide = |value: &mut Value| *value = Value::from("***");
        if let Some(headers) =
            values.get_mut("manifest-url-header").filter(|headers| **headers != Value::Array(Vec::new()))
        {
            hide(headers);
        }
        if let Some(url) =
            values.get_mut("manifest-url").filter(|url| url.as_str().is_some_and(|url| url.contains(['@', '?'])))
        {
            hide(url);
        }
        values
    }
}
