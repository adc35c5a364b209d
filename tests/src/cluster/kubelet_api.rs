//! A node whose kubelet API the apiserver reaches, as `kubectl exec`, `attach` and `debug` need it.

use std::process::Command;

use anyhow::Result;

use super::{Cluster, join, wait_node};
use crate::claim::Port;
use crate::{TestNode, cluster, process};

/// The nodes' address, on loopback as long as it is needed.
#[derive(Debug)]
pub struct NodeAddress;

impl NodeAddress {
    /// Adds it.
    pub fn add() -> Result<Self> {
        process::checked(Command::new("ip").args(["address", "replace", cluster::NODE_ADDRESS, "dev", "lo"]))?;
        Ok(Self)
    }
}

impl Drop for NodeAddress {
    fn drop(&mut self) {
        let address = format!("{}/32", cluster::NODE_ADDRESS);
        Command::new("ip").args(["address", "del", &address, "dev", "lo"]).status().ok();
    }
}

/// Joins, with kubelet's API for the apiserver.
pub fn join_with_api(node: &mut TestNode, cluster: &Cluster, port: &Port) -> Result<()> {
    node.agent.reconfigure(|settings| {
        let authority = cluster.authority();
        settings.kubelet.push(format!("port: {}", port.number));
        settings.kubelet.push(format!("authentication: {{x509: {{clientCAFile: {}}}}}", authority.display()));
    })?;
    join(node, cluster, &[])?;
    wait_node(node, cluster, "the port of its API", |found| {
        found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port.number
    })
    .map(drop)
}
