//! Gathers what a Node object says about the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::config::Config;
use limpet_containerd::container::runtime::{RUNC_HANDLER, RUNC_SHIM};
use limpet_core::node_object::{ExternalCloud, NodeDescription};
use limpet_host::machine::{self, MachineIds};
use limpet_host::proc_files::MemoryInfo;
use limpet_host::{blocking, user_namespace};
use limpet_model::kubelet_version;
use limpet_model::node::{NodeFacts, architecture};
use limpet_node::capacity::Capacity;

/// Describes the node for its object. It reads files; what cannot be read stays empty.
pub async fn describe(config: &Config, facts: &NodeFacts, capacity: &Capacity) -> NodeDescription {
    let look = blocking::run("/etc/os-release".into(), blocking::DEADLINE, |_| info());
    NodeDescription {
        name: facts.name.clone(),
        labels: config.cluster.labels.clone(),
        provider_id: config.cluster.provider_id.clone(),
        taints: config.cluster.taints.clone(),
        external_cloud: config
            .cluster
            .external_cloud
            .then_some(ExternalCloud { given_addresses: config.node.ip.specified() }),
        architecture: architecture(),
        capacity: capacity.all.clone(),
        allocatable: capacity.allocatable.clone(),
        max_pods: config.node.most_pods(machine::processors()),
        runtime_handlers: runtime_handlers(config).map(|(name, _)| name).collect(),
        user_namespaces: with_user_namespaces(config),
        swap: MemoryInfo::read().map_or(0, |memory| memory.swap_total),
        api_port: config.server.api().map(|address| address.port()),
        info: look.await.unwrap_or_default(),
    }
}

/// The runtime handlers whose pods can have user namespaces.
fn with_user_namespaces(config: &Config) -> BTreeSet<String> {
    if user_namespace::missing_support(&config.runtime.snapshotter).is_some() {
        return BTreeSet::new();
    }
    runtime_handlers(config).filter(|(_, shim)| *shim == RUNC_SHIM).map(|(name, _)| name).collect()
}

/// The names that a RuntimeClass may use for a runtime of the node, each with its shim. The empty one is for pods
/// without a class.
fn runtime_handlers(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let classes = config.runtime.classes.iter().map(|(name, class)| (name.clone(), class.runtime.as_str()));
    let built_in = ["", RUNC_HANDLER].into_iter().filter(|name| !config.runtime.classes.contains_key(*name));
    built_in.map(|name| (name.to_owned(), RUNC_SHIM)).chain(classes)
}

/// `nodeInfo`, as far as it comes from files.
fn info() -> BTreeMap<&'static str, String> {
    let ids = MachineIds::read();
    let os = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    BTreeMap::from([
        ("machineID", ids.machine),
        ("systemUUID", ids.system),
        ("bootID", ids.boot),
        ("kernelVersion", rustix::system::uname().release().to_string_lossy().into_owned()),
        ("osImage", pretty_name(&os)),
        ("kubeletVersion", kubelet_version()),
        ("kubeProxyVersion", String::new()),
    ])
}

fn pretty_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map(|name| name.trim_matches(['"', '\'']).to_owned())
        .unwrap_or_else(|| if Path::new("/etc/os-release").exists() { "Linux".to_owned() } else { String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_as_kubernetes_does() {
        assert_eq!(pretty_name("ID=debian\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
        let info = info();
        assert!(info["kernelVersion"].starts_with(|c: char| c.is_ascii_digit()), "{info:?}");
        assert!(info["kubeletVersion"].starts_with("v1.") && info["kubeletVersion"].contains("+limpet."), "{info:?}");
    }
}
