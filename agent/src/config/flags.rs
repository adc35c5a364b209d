//! `limpet run`'s flags: kubelet's, where they mean the same.

use std::path::PathBuf;

/// kubelet's flags. A flag wins over the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct RunFlags {
    /// KubeletConfiguration file; a second document in it, kind LimpetConfiguration, holds what kubelet lacks
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node at its first start; later it has to be the same
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// containerd's socket [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "ENDPOINT")]
    pub container_runtime_endpoint: Option<String>,
    /// Directory of Pod manifests, or one manifest
    #[arg(long, value_name = "PATH")]
    pub pod_manifest_path: Option<PathBuf>,
    /// Where limpet keeps what survives a reboot [default: /var/lib/limpet]
    #[arg(long, value_name = "DIR")]
    pub root_dir: Option<PathBuf>,
    /// Verbosity of the log, 0 to 10 [default: 2]
    #[arg(short = 'v', long = "v", value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=10))]
    pub verbosity: Option<u8>,
}
