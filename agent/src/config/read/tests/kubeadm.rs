//! The configuration that kubeadm writes for a kubelet: zeros mean defaults, and nothing in it is a reason not to start.

use std::path::Path;

use super::load_text;
use crate::config::Config;
use limpet_host::cgroup::CgroupDriver;

/// `kubeadm config print init-defaults --component-configs KubeletConfiguration` of 1.37.1.
const KUBEADM: &str = include_str!("kubeadm.yaml");

#[test]
fn zeros_are_defaults() {
    let (config, warnings, _) = load_text(KUBEADM, &[]);
    let (config, default) = (config.unwrap(), Config::default());
    // This test does not give the flag.
    let without_cluster = |warning: &&String| !warning.contains("without --kubeconfig");
    assert_eq!(warnings.iter().filter(without_cluster).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(config.sources.manifest_path.as_deref(), Some(Path::new("/etc/kubernetes/manifests")));
    assert_eq!(config.cgroups.driver, CgroupDriver::Systemd);
    assert_eq!(config.cluster.frequencies, default.cluster.frequencies);
    assert_eq!(config.server.stream_idle_timeout, default.server.stream_idle_timeout);
    assert_eq!(config.server.token_lifetime, default.server.token_lifetime);
}
