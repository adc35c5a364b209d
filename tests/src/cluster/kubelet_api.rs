//! A node whose kubelet API the apiserver reaches, as `kubectl exec`, `attach` and `debug` need it.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Result, bail};

use super::{Cluster, join, wait_node};
use crate::claim::{Claim, Port};
use crate::{TestNode, process};

/// An address for a node, on loopback as long as it is needed. No other node of a test has it.
#[derive(Debug)]
pub struct NodeAddress {
    /// One of the addresses that are reserved for documentation.
    pub address: Ipv4Addr,
    _claim: Claim,
}

impl NodeAddress {
    /// Adds one.
    pub fn add() -> Result<Self> {
        // The first addresses may belong to the machine.
        for address in (100..250).map(|last| Ipv4Addr::new(192, 0, 2, last)) {
            let Some(claim) = Claim::take(format!("address-{address}"))? else { continue };
            process::checked(Command::new("ip").args(["address", "replace", &address.to_string(), "dev", "lo"]))?;
            return Ok(Self { address, _claim: claim });
        }
        bail!("all addresses are claimed")
    }
}

impl Drop for NodeAddress {
    fn drop(&mut self) {
        let address = format!("{}/32", self.address);
        Command::new("ip").args(["address", "del", &address, "dev", "lo"]).status().ok();
    }
}

/// Joins, with kubelet's API for the apiserver at that address.
pub fn join_with_api(node: &mut TestNode, cluster: &Cluster, port: &Port, address: &NodeAddress) -> Result<()> {
    node.agent.reconfigure(|settings| {
        let authority = cluster.authority();
        settings.kubelet.push(format!("port: {}", port.number));
        settings.kubelet.push(format!("authentication: {{x509: {{clientCAFile: {}}}}}", authority.display()));
    })?;
    join(node, cluster, &[&format!("--node-ip={}", address.address)])?;
    wait_node(node, cluster, "the port of its API", |shown| {
        shown["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port.number
    })
    .map(drop)
}
